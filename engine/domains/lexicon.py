"""Word groups the classifier counts. Each word belongs to one group, so that a count can be read as what it says."""

GROUPS: dict[str, str] = {
    # Words of programming languages that plain English hardly uses.
    "keywords": """
        def elif lambda self none print len int str dict bool float tuple char void struct const var fn func impl
        enum typedef sizeof static null nil async await yield isinstance range std cout printf include endif ifdef
        println argv args kwargs init numpy np pd sys os elseif endfor foreach typeof instanceof stdin stdout stdlib
        iostream namespace nullptr uint unsigned malloc varchar groupby inner distinct href div span onclick console
        assert except raise finally append enumerate zip param typing optional""",
    # Words people use when they talk about programs, and hardly otherwise.
    "programming": """
        python java javascript typescript golang kotlin php perl sql html css json xml yaml regex csv csharp coding
        programmer programmers algorithm algorithms array arrays boolean tuple hashmap pointer pointers recursion
        recursive recursively refactor debug debugging bug bugs compile compiler runtime api endpoint database query
        docstring unittest unittests traceback callback substring substrings subarray iterate serialise serialize
        parses parse encode decode backtracking bfs dfs lru cache stdin linked syntax git docker linux sorted sorts
        middleware async webpage website backend frontend software implements implement""",
    # Words that programmers share with everybody else.
    "shared technical": """
        function functions method methods class classes string strings list lists dictionary queue stack heap
        integer loop loops sort code program programs programming script implementation exception server library
        module package import returns return input inputs output outputs parameter parameters argument arguments
        variable variables complexity binary node nodes tree trees index indices element elements graph thread
        snippet file files folder data structure structures type types value values object objects line lines text
        rust swift ruby bash""",
    # Words of mathematics as a subject.
    "mathematics": """
        integers prime primes polynomial polynomials equation equations inequality triangle triangles angle angles
        circle circles radius diameter perimeter rectangle square squares cube vertex vertices probability divisible
        divisor divisors divides remainder modulo factorial fraction fractions numerator denominator sqrt logarithm
        exponent root roots matrix matrices determinant vector derivative integral theorem prove proof digit digits
        solve solution solutions evaluate simplify coefficient coefficients algebra geometry calculus arithmetic
        sequence permutations combinations dice coin coins odd even positive negative nonnegative real consecutive
        distinct lcm gcd express formula mod hypotenuse bisector subsets ordered pairs""",
    # Words that count, compare and price things: the stuff of word problems.
    "quantities": """
        total totals altogether each per times twice half halves thrice double triple quarter third thirds fourth
        percent percentage dozen dozens pair many much more less fewer than cost costs price priced prices pay pays
        paid spend spends spent buy buys bought sell sells sold earn earns earned save saves saved left remaining
        remain remains rest average sum difference product number numbers amount equal equally rate ratio dollars
        dollar cents cent hour hours minute minutes second seconds day days week weeks month months year years old
        older younger mile miles feet foot inches inch meters meter kilometers pounds ounces gallons liters cups add
        adds added gave gives give eat eats ate weigh weighs long tall divided shares profit discount combined""",
    "number words": """
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million""",
    "question words": """
        what why how who whom whose when where which can could should would does did do is are was were will""",
    "person words": """
        i im ive ill me my mine myself you youre your yours yourself we our ours us dont thats cant didnt isnt lets
        let""",
    "dialogue": """
        hi hello hey thanks thank please ok okay lol haha yeah yes yep nope sorry bye goodbye welcome morning night
        wow cool nice awesome great whats greetings dude bro anyone home favorite favourite bored tired oh ah hmm um
        well really guess maybe friend feel feeling feelings love like likes liked hate happy sad fun funny think
        thought know talk talking tell chat""",
    # What people ask an assistant to do with words.
    "requests": """
        write describe explain compose draft discuss imagine pretend act suggest recommend summarize summarise
        rewrite paraphrase rephrase edit proofread translate brainstorm outline compare contrast analyze analyse
        provide share embody suppose create help craft story stories poem poems essay essays email emails letter
        letters blog article articles paragraph paragraphs sentence sentences headline speech screenplay dialogue
        review reviews summary tone style character characters role persona topic ideas opinion opinions advice tips
        examples example narrative plot scene title grammar persuasive creative descriptive engaging concise
        detailed words plan lesson propose prepare options interview debate persuade design insights consider
        elaborate list response answer questions impact differences concept concepts importance key""",
    # What people talk about.
    "world": """
        people person man woman world life country countries history historical culture cultural society social
        political politics government law laws war economy economic economics policy business market marketing
        company art music movie movies film films book books novel author food health medical doctor disease body
        brain mind psychology philosophy religion god science scientific physics chemistry biology energy nature
        earth planet universe climate environment animal animals human humans language languages education teacher
        family children child parents relationship work job career travel trip city sports game games technology
        future quantum students student teenagers class period public community local professional house car street
        event events lives living experience experiences evolution cell cells protein reaction reactions theory
        century king queen american europe china japan""",
    "function words": """
        the of and to a in it that for with as on be by this from at or an have has had not but they their there his
        her he she its if so about into these those any some all other then them been being such only also""",
    # Small words of other languages that are not English words too.
    "foreign words": """
        de la el los las que y en un una por para con es su del se al como más pero le les des et il du est pas je
        ne vous nous une dans qui sur au ce son elle der die das und ist nicht ich ein eine zu den mit sich auf für
        von dem sie wie auch wir bist di che è non sono per della lo gli ti mi sei ho você não um uma os são com
        isso het een van ik niet dat zijn och att det jag inte är som på till vad bir ve bu nasıl için siz yang dan
        saya anda apa tidak ini itu adalah kya hai aap main nahi ka ki ko mein bahut está qué""",
}


def _index() -> dict[str, int]:
    words: dict[str, int] = {}
    for position, group in enumerate(GROUPS.values()):
        for word in group.split():
            words.setdefault(word, position)  # a word named twice counts in the first group
    return words


# word -> position of its group in GROUPS
WORDS: dict[str, int] = _index()
