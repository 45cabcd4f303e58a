"""Words of English and Chinese that the offline model knows: none of them belongs to a particular tool.

What a tool can do is read from its schema alone.
"""

from __future__ import annotations

import re
from functools import cache

from ferrule.catalog.search.terms import STOP_WORDS, extract_terms, stem
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import HAN
from ferrule.texts.numbers import ValueSpan

_GENERIC_WORDS = """
get fetch give show tell find do make run let put take retrieve return provide obtain perform execute invoke call
know see look want need help us hi hello hey thanks thank please ok okay sure kindly just now today currently current
right exactly quick quickly much many more most also too again first second third next last finally up out off over
something anything someone thing stuff way kind long far old big tool tools api function user me mine
between per each every within during since until s t m re ve d ll whats what's hows lets im like there get got go
set turn would could should shall might does did done being having one ones really actually maybe perhaps
difference well
"""
_GENERIC = frozenset(stem(word) for word in _GENERIC_WORDS.split()) | STOP_WORDS

_CHINESE_GENERIC_WORDS = """
请问 请你 请帮我 请帮 帮我 帮忙 麻烦你 麻烦 我想要 我想知道 我想 想知道 我要 我需要
你能 能不能 能否 可不可以 可以 告诉我 告诉 给我 一下 一个 怎么样 怎样 怎么 如何 是什么
是多少 什么 多少 几点 几号 几度 哪里 哪个 哪些 为什么 吗 呢 吧 啊 呀 了 的 是 现在
目前 当前 今天 查询 查看 查一下 查查 看看 那里 那儿 这里 里面 等于 得到 了解 知道
时差 相差 几个小时 几小时 差几个小时 差多少小时
显示 得出 等于几 是几 多少钱 要付 答案 结果 哪个 算一下 计算 请计算 帮我算
"""
CHINESE_GENERIC = "|".join(sorted(map(re.escape, _CHINESE_GENERIC_WORDS.split()), key=len, reverse=True))
# Single characters that are generic only at the beginning or end of a phrase: 上海 does not contain the word 上.
CHINESE_LEADING = "请把将用在和与帮查看从给对去先再发问"
CHINESE_TRAILING = "里上下中内去有会多成为给到用"
_CHINESE_GENERIC_PATTERN = lazy_pattern(CHINESE_GENERIC)
_CHINESE_RUN = lazy_pattern(rf"[{HAN}]+")

_GLOSSARY = """
读取:read 阅读:read 打开:open 关闭:close 删除:delete 移除:remove 写入:write 保存:save 创建:create
新建:create 添加:add 增加:add 更新:update 修改:update 编辑:edit 发送:send 列出:list 列表:list 复制:copy
移动:move 下载:download 上传:upload 播放:play 预订:book 预定:book 订购:order 购买:buy 取消:cancel
转换:convert 换算:convert 兑换:convert 换成:convert 生成:generate 比较:compare 排序:sort 统计:count 计数:count
过滤:filter 合并:merge 拆分:split 压缩:compress 加密:encrypt 分析:analyze 总结:summarize
摘要:summary 解释:explain 定义:definition 运行:run 执行:run 启动:start 停止:stop 重启:restart
安装:install 登录:login 支付:pay 转账:transfer 预测:forecast 推荐:recommend 查找:find 搜索:search
检查:check 测试:test 连接:connect 文件:file 目录:directory 文件夹:folder 邮件:email 消息:message
短信:sms 图片:image 照片:photo 视频:video 音乐:music 歌曲:song 新闻:news 天气:weather 时间:time
日期:date 时区:timezone 日历:calendar 会议:meeting 提醒:reminder 任务:task 订单:order 股票:stock
价格:price 汇率:exchange 货币:currency 航班:flight 机票:flight 火车:train 酒店:hotel 餐厅:restaurant
用户:user 客户:customer 账户:account 密码:password 数据库:database 表格:table 网页:page 网站:website
链接:link 代码:code 服务器:server 随机:random 平均:average 数字:number 单词:word 文本:text
语言:language 地图:map 路线:route 距离:distance 面积:area 温度:temperature 湿度:humidity 灯:lamp
笔记:note 备忘:note 联系人:contact 电话:phone 地址:address 工单:ticket
"""
GLOSSARY = {chinese: stem(english) for chinese, _, english in (pair.partition(":") for pair in _GLOSSARY.split())}
"""Words that tools are described with, so that a Chinese question finds an English tool."""
_QUESTION_WORDS = {
    "几点钟": "的时间",
    "几点": "的时间",
    "星期几": "的日期",
    "几号": "的日期",
    "多少度": "的气温",
    "几度": "的气温",
}

_LANGUAGES = """
en english 英语 英文; zh chinese mandarin 中文 汉语 普通话; fr french 法语 法文; de german 德语 德文
es spanish 西班牙语 西班牙文; it italian 意大利语; pt portuguese 葡萄牙语; ru russian 俄语 俄文
ja japanese 日语 日文; ko korean 韩语 韩文; ar arabic 阿拉伯语; hi hindi 印地语; nl dutch 荷兰语; pl polish 波兰语
tr turkish 土耳其语; sv swedish 瑞典语; el greek 希腊语; vi vietnamese 越南语; th thai 泰语; la latin 拉丁语
"""
_CURRENCIES = """
USD usd dollar dollars $ 美元 美金; EUR eur euro euros € 欧元; GBP gbp pound pounds £ 英镑; JPY jpy yen 日元
CNY cny rmb yuan renminbi ¥ 人民币; CHF chf franc francs 瑞士法郎; INR inr rupee rupees 卢比; KRW krw won 韩元
"""


def is_generic(term: str) -> bool:
    """Whether a search term says nothing about which tool fits."""
    return term in _GENERIC


def significant_terms(text: str) -> list[str]:
    """The search terms of a text that are not generic."""
    return [term for term in extract_terms(text) if not is_generic(term)]


def find_chinese_runs(text: str) -> list[str]:
    return _CHINESE_RUN.findall(text)


def remove_generic_chinese(run: str) -> list[str]:
    """The pieces of a run of Chinese characters that remain without generic words."""
    pieces = [piece.lstrip(CHINESE_LEADING).rstrip(CHINESE_TRAILING) for piece in _CHINESE_GENERIC_PATTERN.split(run)]
    return [piece for piece in pieces if piece]


def replace_question_words(text: str) -> str:
    """几点 asks for the time (时间), which is the word that tools use."""
    for word, noun in _QUESTION_WORDS.items():
        text = text.replace(word, noun)
    return text


def find_languages(text: str) -> list[ValueSpan]:
    """Languages that a text names; the value is the name and the two-letter code: `French fr`."""
    return _find_names(text, _language_names())


def find_currencies(text: str) -> list[ValueSpan]:
    """The codes of the currencies that a text names; if it contains codes, only those."""
    codes = [ValueSpan(m.group(), *m.span()) for m in re.finditer(r"(?<![A-Za-z])[A-Z]{3}(?![A-Za-z])", text)]
    return codes or _find_names(text, _currency_names())


def _find_names(text: str, names: dict[str, str]) -> list[ValueSpan]:
    lowered = text.lower()
    if len(lowered) != len(text):
        return []
    return [ValueSpan(names[match.group()], *match.span()) for match in _names_pattern(tuple(names)).finditer(lowered)]


@cache
def _names_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    words = [rf"(?<![a-z]){n}(?![a-z])" if n.isascii() and n.isalpha() else re.escape(n) for n in names]
    return re.compile("|".join(sorted(words, key=len, reverse=True)))


@cache
def _language_names() -> dict[str, str]:
    return {name: f"{names[0].capitalize()} {code}" for code, *names in _split_table(_LANGUAGES) for name in names}


@cache
def _currency_names() -> dict[str, str]:
    return {name: code for code, *names in _split_table(_CURRENCIES) for name in names}


def _split_table(table: str) -> list[list[str]]:
    return [entry.split() for line in table.strip().splitlines() for entry in line.split(";")]
