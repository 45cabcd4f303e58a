"""Words of English and Chinese that say nothing about which tool is meant.

They are words of the language, never of a tool: what a tool can do is read from its schema alone.
"""

from __future__ import annotations

import re

from ferrule.search.stemming import stem
from ferrule.search.words import STOP_WORDS, is_cjk

_SAYING_LITTLE = """
get fetch give show tell find do make run let put take retrieve return provide obtain perform execute invoke call
know see look want need help us hi hello hey thanks thank please ok okay sure kindly just now today currently current
right exactly quick quickly much many more most also too again first second third next last finally up out off over
something anything someone thing stuff way kind long far old big tool tools api function user me mine
between per each every within during since until s t m re ve d ll whats what's hows lets im like there get got go
set turn would could should shall might does did done being having one ones really actually maybe perhaps well
"""
GENERIC = frozenset(stem(word) for word in _SAYING_LITTLE.split()) | STOP_WORDS

_CHINESE_FRAME = """
请问 请你 请帮我 请帮 帮我 帮忙 麻烦你 麻烦 我想要 我想知道 我想 想知道 我要 我需要
你能 能不能 能否 可不可以 可以 告诉我 告诉 给我 一下 一个 怎么样 怎样 怎么 如何 是什么
是多少 什么 多少 几点 几号 几度 哪里 哪个 哪些 为什么 吗 呢 吧 啊 呀 了 的 是 现在
目前 当前 今天 查询 查看 查一下 查查 看看 那里 那儿 这里 里面 等于 得到 了解 知道
显示 得出
"""
_CHINESE = re.compile("|".join(sorted(map(re.escape, _CHINESE_FRAME.split()), key=len, reverse=True)))
_FIRST = re.compile("[请把将用在和与帮查看从给对去先再发问]+")
_LAST = re.compile("[里上下中内去有会多]+\\Z")
"""Little words that are parts of longer ones elsewhere: 上海 is not 上."""
_CJK_RUN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")
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
_LETTER = re.compile(r"[A-Za-z]")


_ASKED_FOR = (
    ("几点钟", "的时间"),
    ("几点", "的时间"),
    ("星期几", "的日期"),
    ("几号", "的日期"),
    ("多少度", "的气温"),
    ("几度", "的气温"),
)


def spelled_out(text: str) -> str:
    """几点 asks for the time (时间), which is what tools call it."""
    for asking, thing in _ASKED_FOR:
        text = text.replace(asking, thing)
    return text


def is_generic(term: str) -> bool:
    """Whether a term of `ferrule.search` says nothing about which tool is meant."""
    return term in GENERIC


def without_frame(run: str) -> list[str]:
    """The pieces of a run of Chinese characters that are left when polite and asking words are taken out."""
    pieces = [
        _LAST.sub("", _FIRST.sub("", piece, count=1) if _FIRST.match(piece) else piece) for piece in _CHINESE.split(run)
    ]
    return [piece for piece in pieces if piece]


def chinese_runs(text: str) -> list[re.Match[str]]:
    return list(_CJK_RUN.finditer(text))


def is_chinese(text: str) -> bool:
    """Whether a text is better answered in Chinese."""
    characters = sum(1 for char in text if is_cjk(char))
    return characters > 0 and characters * 4 >= len(_LETTER.findall(text))
