// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Takes characters apart and joins them again as Unicode's normalization forms say.
final class Composition {
    private static let syllables: Int = 0xAC00
    private static let leading: Int = 0x1100
    private static let vowels: Int = 0x1161
    private static let trailing: Int = 0x11A7
    private static let vowelCount: Int = 21
    private static let trailingCount: Int = 28
    private static let leadingCount: Int = 19
    private static let syllableCount: Int = 19 * 21 * 28

    private let tables: UnicodeTables

    init(_ tables: UnicodeTables) {
        self.tables = tables
    }

    /// The characters that one character is taken apart into, at least one; `compatible` for the forms with a K.
    func decompose(_ code: Int, compatible: Bool) -> [Int] {
        let syllable: Int = code - Composition.syllables
        if syllable >= 0 && syllable < Composition.syllableCount {
            let block: Int = Composition.vowelCount * Composition.trailingCount
            let first: Int = Composition.leading + syllable / block
            let second: Int = Composition.vowels + (syllable % block) / Composition.trailingCount
            if syllable % Composition.trailingCount == 0 {
                return [first, second]
            }
            return [first, second, Composition.trailing + syllable % Composition.trailingCount]
        }
        if code < 0xA0 {
            return [code]
        }
        if compatible {
            let entry: Int = tables.nfkd.find(code)
            if entry >= 0 {
                return tables.nfkd.text(entry)
            }
        }
        let entry: Int = tables.nfd.find(code)
        return entry < 0 ? [code] : tables.nfd.text(entry)
    }

    /// What two characters are joined to; -1 where they stay two.
    func compose(_ first: Int, _ second: Int) -> Int {
        let lead: Int = first - Composition.leading
        let vowel: Int = second - Composition.vowels
        if lead >= 0 && lead < Composition.leadingCount && vowel >= 0 && vowel < Composition.vowelCount {
            return Composition.syllables + (lead * Composition.vowelCount + vowel) * Composition.trailingCount
        }
        let syllable: Int = first - Composition.syllables
        let tail: Int = second - Composition.trailing
        if syllable >= 0 && syllable < Composition.syllableCount {
            let open: Bool = syllable % Composition.trailingCount == 0
            if open && tail > 0 && tail < Composition.trailingCount {
                return first + tail
            }
        }
        if second < 0x300 {
            return -1
        }
        guard let made = tables.pairs[UnicodeTables.key(first, second)] else {
            return -1
        }
        return made
    }

    /// The combining class, by which marks on one letter are ordered; 0 of letters.
    func combiningClass(_ code: Int) -> Int {
        return code < 0x300 ? 0 : tables.combiningClass.value(code)
    }
}
