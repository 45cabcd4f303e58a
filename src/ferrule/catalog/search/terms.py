"""Splitting text of any language into search terms.

Words of alphabets are split at case, underscores, dots and the like, and reduced to their stems. A word of mixed case
counts as its parts and as a whole: `GitHub` is found by `git`, `hub` and `github`. Chinese, Japanese and Korean have
no spaces to split at: every two neighbouring characters are a term, which needs no dictionary.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import CJK, HAN, begins_with_cjk, contains_chinese
from ferrule.texts.shorten import single_line

_ASCII_WORD = lazy_pattern(r"[A-Za-z0-9]+")
_WORD = lazy_pattern(rf"[{CJK}]+|[^\W_{CJK}]+")
_WORD_PART = lazy_pattern(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_PUNCTUATION = lazy_pattern(r"[\W_]+")
_CJK_PARTICLES = lazy_pattern("[的吗呢吧啊我你您们]")

_STOP_WORDS = """
a an the this that these those it its i me my we our you your he she they them their and or but not no of to in
on at by for from with into as is are was were be been being am do does did has have had can could will would
should may might must if then than so such there here what which who whom whose when where why how any some all
each please want need like using use used via about
请 帮 帮我 请帮 一 个 一个 一下 如何 怎么 怎样 什么 可以 需要 想要 用于 或者 以及 并且 是 在 和 与 或 了 把 将 从 对
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English and Chinese words that do not tell what a tool does."""


def extract_terms(text: str) -> list[str]:
    """Return the terms of a text, in order, as often as they occur, without stop words."""
    if text.isascii():
        return [term for word in _ASCII_WORD.findall(text) for term in _extract_word_terms(word)]
    terms: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text)):
        if begins_with_cjk(word):
            for run in _CJK_PARTICLES.split(word):
                pairs = [run] if len(run) == 1 else map("".join, zip(run, run[1:], strict=False))
                terms += [pair for pair in pairs if pair not in STOP_WORDS]
        else:
            terms += _extract_word_terms(word)
    return terms


def extract_index_terms(text: str) -> list[str]:
    """Return the terms of a text for the index: with single Chinese characters, for queries that are that short."""
    terms = extract_terms(text)
    if text.isascii():
        return terms
    return terms + [
        char for char in unicodedata.normalize("NFKC", text) if begins_with_cjk(char) and char not in STOP_WORDS
    ]


def remove_case_and_punctuation(name: str) -> str:
    """Make `Get-Weather`, `get_weather` and `getWeather` the same."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return _PUNCTUATION.sub("", name.lower())


@lru_cache(maxsize=50_000)
def _extract_word_terms(word: str) -> tuple[str, ...]:
    whole = _remove_accents(word)
    if whole in STOP_WORDS:
        return ()
    stemmed = stem(whole)
    if word.isupper() or word[1:].islower() or not word.isascii() or word.isdigit() or len(word) == 1:
        return (stemmed,)
    parts = [stem(part.lower()) for part in _WORD_PART.findall(word) if part.lower() not in STOP_WORDS]
    return (*parts, stemmed) if len(parts) > 1 else (stemmed,)


def _remove_accents(word: str) -> str:
    """Return lower case without accents, which people often leave out."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))


_MIN_PREFIX = 3
_MIN_MISSPELT = 5
_MAX_SIMILAR = 5


def similar_terms(term: str, known_terms: Sequence[str]) -> list[str]:
    """Return terms that begin with an unknown one, shortest first; else those with a similar spelling."""
    if len(term) < _MIN_PREFIX or not term.isalpha():
        return []
    longer = [other for other in known_terms if other.startswith(term)]
    if longer:
        return sorted(longer, key=lambda other: (len(other), other))[:_MAX_SIMILAR]
    if len(term) < _MIN_MISSPELT:
        return []
    candidates = [other for other in known_terms if abs(len(other) - len(term)) <= 2 and other.isalpha()]
    return get_close_matches(term, candidates, n=_MAX_SIMILAR, cutoff=0.8)


# Stems of English words, so that `files`, `searching` and `calculator` match `file`, `search` and `calculate`. An odd
# stem does no harm, because the words of tools and of queries get the same one.

_VOWEL = lazy_pattern(r"[aeiouy]")
_SHORT_STEM = lazy_pattern(r"[^aeiou][aeiou][^aeiouwxy]\Z")
"""The rest of `saving` or `named`, which end in e."""


def stem(word: str) -> str:
    """Return the stem of a lower-case word of plain letters."""
    word = _strip_verb_ending(_to_singular(word))
    return word[:-1] if len(word) >= 5 and word.endswith("e") else word


def _to_singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


def _strip_verb_ending(word: str) -> str:
    if len(word) >= 8 and word.endswith("ation"):
        return word[:-3]
    if len(word) >= 8 and word.endswith("ator"):
        return word[:-2]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest) and not word.endswith("eed"):
            if len(rest) >= 4 and rest[-1] == rest[-2] and rest[-1] not in "lsz":
                return rest[:-1]
            return rest + "e" if len(rest) == 3 and _SHORT_STEM.match(rest) else rest
    return word


# English terms for the Chinese words of a query, so that words alone find tools described in English. Only words of
# requests to tools are listed; the extra `semantic` knows all others.

_WORDS: Final = """
文件 file|文件夹 directory folder|目录 directory|路径 path|文档 document|文本 text|内容 content|图片 image
照片 photo image|图像 image|视频 video|音频 audio|音乐 music|歌曲 song|表格 table|数据库 database|数据 data
记录 record|字段 field|列 column|行 row|表 table|代码 code|仓库 repository|分支 branch|提交 commit|合并 merge
合并请求 pull request|拉取 pull|推送 push|版本 version|标签页 tab|标签 tag|评论 comment|评审 review|问题 issue
工单 ticket|项目 project|任务 task|待办 todo|清单 list|列表 list|日历 calendar|日程 schedule|会议 meeting
提醒 reminder|闹钟 alarm|时间 time|几点 time|日期 date|时区 timezone|天气 weather|气温 temperature
温度 temperature|预报 forecast|湿度 humidity|雪 snow|雨 rain|空气质量 air quality|地图 map|路线 route
导航 navigation|距离 distance|交通 traffic|堵车 traffic|航班 flight|机票 flight|机场 airport|火车 train
高铁 train|酒店 hotel|宾馆 hotel|餐厅 restaurant|餐馆 restaurant|预订 book reserve|预约 appointment
租车 car rental|租 rent|出租车 taxi cab|打车 ride cab|汽车 car vehicle|车辆 vehicle|车门 door|电影 movie
演出 show|音乐会 concert|演唱会 concert|门票 ticket|博物馆 museum|图书馆 library|新闻 news|报道 news|股票 stock
股价 stock price|价格 price|多少钱 price cost|费用 cost|汇率 exchange rate|货币 currency|美元 dollar|欧元 euro
比特币 bitcoin cryptocurrency|转账 transfer|付款 payment|支付 payment|账户 account|银行 bank|余额 balance
贷款 loan|利率 interest rate|利息 interest|复利 compound interest|投资 investment|回报 return|利润 profit
收入 income revenue|税 tax|消费税 sales tax|预算 budget|发票 invoice|订单 order|购物车 cart|商品 product
产品 product|库存 stock inventory|客户 customer|用户 user|用户组 group|成员 member user|员工 employee
公司 company|团队 team|联系人 contact|邮件 email|邮箱 email|短信 message sms|消息 message|聊天 chat
通知 notification notify|电话 phone call|推特 twitter tweet|推文 tweet|关注 follow|发送 send|发 send|回复 reply
搜索 search|查找 find search|找 find|查询 query get|查 get|查看 get view show|显示 show display|列出 list
获取 get|读取 read|读 read|打开 open|关闭 close|创建 create|新建 create new|添加 add|加 add|插入 insert
删除 delete remove|移除 remove|修改 update modify|改 update change|更新 update|编辑 edit|替换 replace
重命名 rename|移动 move|复制 copy|保存 save write|写入 write|写 write|上传 upload|下载 download|压缩 compress
解压 extract|转换 convert|换算 convert|翻译 translate|总结 summarize summary|比较 compare|分析 analyze
统计 statistics|计算 calculate|求 calculate|预测 predict forecast|估算 estimate|生成 generate|画 draw
绘制 draw plot|图表 chart|排序 sort|筛选 filter|过滤 filter|标记 mark|完成 complete|执行 execute run|运行 run
停止 stop|启动 start|登录 login|密码 password|权限 permission access|令牌 token|配置 configuration
设置 set setting|告警 alert|日志 log|服务器 server|网站 website|网页 web page|页面 page|网址 url|链接 link
浏览器 browser|截图 screenshot|点击 click|输入 type input|按键 key|表单 form|下拉 dropdown select|选择 select
拖动 drag|滚动 scroll|控制台 console|网络 network|请求 request|环境变量 environment variable|屏幕 screen
录制 record|性能 performance|内存 memory|知识图谱 knowledge graph|实体 entity|关系 relation|面积 area
周长 perimeter circumference|体积 volume|半径 radius|圆 circle|三角形 triangle|矩形 rectangle|球 sphere ball
速度 speed velocity|加速度 acceleration|质量 mass|重量 weight|力 force|能量 energy|电流 current|电压 voltage
电阻 resistance|电场 electric field|磁场 magnetic field|电容 capacitance|概率 probability|平均 average mean
标准差 standard deviation|方程 equation|导数 derivative|积分 integral|质数 prime|素数 prime
公约数 common divisor factor|公倍数 common multiple|阶乘 factorial|斐波那契 fibonacci|向量 vector|矩阵 matrix
函数 function|相似 similarity similar|随机 random|游戏 game|球员 player|球队 team|比赛 match game|得分 score
足球 soccer football|篮球 basketball|角色 character|菜谱 recipe|食谱 recipe|食物 food|卡路里 calorie
营养 nutrition|医院 hospital|医生 doctor|药 medicine drug|疾病 disease|法律 law|案件 case|官司 lawsuit
诉讼 lawsuit|犯罪 crime|处罚 penalty|历史 history|总统 president|首相 prime minister|国王 king monarch
国家 country|首都 capital|城市 city|人口 population|宗教 religion|艺术 art|雕塑 sculpture|建筑 building
房子 house property|房价 property price|植物 plant|动物 animal|细胞 cell|基因 gene|碳 carbon|排放 emission
蓝牙 bluetooth|相机 camera|镜头 camera view|旋律 melody|和弦 chord|吉他 guitar|灯 lamp|阅读 read|播放 play|预定 book
订购 order|购买 buy|取消 cancel|兑换 convert|计数 count|拆分 split|加密 encrypt|摘要 summary|解释 explain
定义 definition|重启 restart|安装 install|推荐 recommend|检查 check|测试 test|连接 connect|数字 number|单词 word
语言 language|笔记 note|备忘 note|地址 address
"""
_CHINESE = lazy_pattern(f"[{HAN}]+")
_MAX_CHINESE_WORD: Final = 4
"""Characters of the longest one."""


@cache
def read_translations() -> dict[str, list[str]]:
    """Return Chinese words, and the English terms for each."""
    pairs = (entry.partition(" ") for line in _WORDS.split("\n") for entry in line.split("|") if entry)
    return {chinese: extract_terms(english) for chinese, _, english in pairs}


def translate_terms(text: str) -> list[str]:
    """Return English terms for the Chinese words in a text; of two overlapping words, the longer one counts."""
    if text.isascii():
        return []
    table = read_translations()
    terms: dict[str, None] = {}
    for run in _CHINESE.findall(text):
        at = 0
        while at < len(run):
            word = next((run[at : at + n] for n in range(_MAX_CHINESE_WORD, 0, -1) if run[at : at + n] in table), None)
            terms |= dict.fromkeys(table[word] if word else ())
            at += len(word) if word else 1
    return list(terms)


# The jobs that a request consists of: `Read the paper, translate it, and send it to Bob` has three. A search for a
# request with several jobs finds tools for the one that most of its words are about. So each is searched for as well.

MAX_JOBS: Final = 6
_MIN_TERMS: Final = 2
"""Fewer say too little to be searched for on their own."""
_SENTENCE_END = lazy_pattern(r"(?<=[.!?;:]) |[。！？；：]")
_JOINT = lazy_pattern(r"[,，、]|(?<= )(?:and|then|or)(?= )|然后|并且|同时|以及|接着|最后|再")
"""Where another job may begin within a sentence."""


def split_jobs(text: str, begins_action: Callable[[str], bool]) -> list[str]:
    """Return the jobs of a text if they are several, at most `MAX_JOBS`.

    `begins_action` tells whether a term is one that names or descriptions of actions begin with, as verbs are: what
    follows a comma or an `and` is another job only if it begins with one. Chinese verbs have no such place.
    """
    jobs: dict[str, None] = {}
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(single_line(line)):
            for job in _split_sentence(sentence, begins_action):
                if len(set(extract_terms(job))) >= _MIN_TERMS:
                    jobs[job] = None
    return list(jobs)[:MAX_JOBS] if len(jobs) > 1 else []


def _split_sentence(sentence: str, begins_action: Callable[[str], bool]) -> Iterator[str]:
    start = end = next_start = 0
    for joint in [*_JOINT.finditer(sentence), None]:
        clause_start, (clause_end, next_start) = next_start, joint.span() if joint else (len(sentence), len(sentence))
        clause = sentence[clause_start:clause_end]
        terms = extract_terms(clause)
        if len(set(terms)) >= _MIN_TERMS and (contains_chinese(clause) or begins_action(terms[0])):
            yield sentence[start:end].strip()
            start = clause_start
        if terms:
            end = clause_end
    yield sentence[start:end].strip()
