// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Finds the ends of extended grapheme clusters, what a reader takes for one character, by the rules of Unicode's annex 29.
final class Graphemes {
    private static let cr: Int = 1
    private static let lf: Int = 2
    private static let control: Int = 3
    private static let extend: Int = 4
    private static let zwj: Int = 5
    private static let regional: Int = 6
    private static let prepending: Int = 7
    private static let spacing: Int = 8
    private static let l: Int = 9
    private static let v: Int = 10
    private static let t: Int = 11
    private static let lv: Int = 12
    private static let lvt: Int = 13
    private static let pictogram: Int = 64

    private let kinds: CodePointNumbers

    init(_ tables: UnicodeTables) {
        self.kinds = tables.graphemes
    }

    /// The end of the cluster that starts at a place.
    func next(_ codes: [Int], _ start: Int) -> Int {
        var before: Int = kinds.value(codes[start])
        var regionals: Int = Graphemes.kind(before) == Graphemes.regional ? 1 : 0
        var picture: Bool = (before & Graphemes.pictogram) != 0
        var joined: Bool = false // a pictogram, what extends it, and a joiner
        var consonant: Bool = Graphemes.conjunct(before) == 2
        var linked: Bool = false // a consonant, and what extends it, a linker among them
        var at: Int = start + 1
        while at < codes.count {
            let after: Int = kinds.value(codes[at])
            let kind: Int = Graphemes.kind(after)
            let conjunct: Int = Graphemes.conjunct(after)
            let isPicture: Bool = (after & Graphemes.pictogram) != 0
            let pair: Bool = Graphemes.kind(before) == Graphemes.regional && kind == Graphemes.regional
            let kept: Bool = (joined && isPicture) || (linked && conjunct == 2) || (pair && regionals % 2 == 1)
            if !kept && !Graphemes.joins(Graphemes.kind(before), kind) {
                return at
            }
            regionals = kind == Graphemes.regional ? regionals + 1 : 0
            joined = picture && kind == Graphemes.zwj
            picture = isPicture || (picture && kind == Graphemes.extend)
            linked = consonant && (conjunct == 1 || (linked && conjunct == 3))
            consonant = conjunct == 2 || (consonant && conjunct != 0)
            before = after
            at += 1
        }
        return codes.count
    }

    private static func joins(_ before: Int, _ after: Int) -> Bool {
        if before == cr && after == lf {
            return true
        }
        if (before >= cr && before <= control) || (after >= cr && after <= control) {
            return false
        }
        if after == extend || after == zwj || after == spacing || before == prepending {
            return true
        }
        if before == l {
            return after == l || after == v || after == lv || after == lvt
        }
        if before == lv || before == v {
            return after == v || after == t
        }
        return (before == lvt || before == t) && after == t
    }

    private static func kind(_ value: Int) -> Int {
        return value & 15
    }

    private static func conjunct(_ value: Int) -> Int {
        return (value >> 4) & 3
    }
}
