// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// The pieces of a vocabulary and their ids; a piece is found by its UTF-8, since Swift takes canonically equal strings for one.
final class Vocabulary {
    private var ids: [[UInt8]: Int] = [:]
    private var pieces: [Int: [UInt8]] = [:]
    private var size: Int = 0
    /// Number of bytes of the longest piece.
    private(set) var longest: Int = 0

    /// Makes one; of a piece that is there twice the last one counts where `lastWins`, else it is refused.
    init(_ content: [[UInt8]], ids numbers: [Int], lastWins: Bool) throws {
        for index in 0..<content.count {
            let piece: [UInt8] = content[index]
            if !lastWins && ids[piece] != nil {
                throw TokenizerError("tokenizer.json: model: the piece '\(Texts.string(piece))' is there twice.")
            }
            ids[piece] = numbers[index]
            pieces[numbers[index]] = piece
            longest = max(longest, piece.count)
        }
        if ids.isEmpty {
            throw TokenizerError("tokenizer.json: model: its vocabulary is empty.")
        }
        size = content.count
    }

    var count: Int {
        return size
    }

    /// The id of a piece; -1 where it has none.
    func id(_ piece: [UInt8]) -> Int {
        guard let found = ids[piece] else {
            return -1
        }
        return found
    }

    /// The piece that has an id; nothing where none has.
    func piece(_ id: Int) -> [UInt8] {
        guard let found = pieces[id] else {
            return []
        }
        return found
    }

    /// The pieces of some bytes; nothing where the vocabulary lacks one.
    private func byteIds(_ bytes: [UInt8]) -> [Int] {
        let digits: [UInt8] = Texts.utf8("0123456789ABCDEF")
        let start: [UInt8] = Texts.utf8("<0x")
        let end: [UInt8] = Texts.utf8(">")
        var out: [Int] = []
        for byte in bytes {
            let value: Int = Int(byte)
            let middle: [UInt8] = [digits[value / 16], digits[value % 16]]
            let found: Int = id(start + middle + end)
            if found < 0 {
                return []
            }
            out.append(found)
        }
        return out
    }
}

/// Tokens of one word: their ids, and the characters of the word that they stand for.
final class Tokens {
    private(set) var ids: [Int] = []
    private(set) var starts: [Int] = []
    private(set) var ends: [Int] = []

    func add(_ id: Int, _ start: Int, _ end: Int) {
        ids.append(id)
        starts.append(start)
        ends.append(end)
    }
}

/// Cuts words into tokens.
protocol Model {
    var vocabulary: Vocabulary { get }
    /// Whether its pieces have scores.
    var scored: Bool { get }

    /// Cuts a word, given as code points.
    func tokenize(_ word: [Int]) -> Tokens
}

/// Cuts a word into the longest pieces of a vocabulary from its start on, as BERT does; else the word is unknown as a whole.
final class WordPiece: Model {
    let vocabulary: Vocabulary
    let scored: Bool = false
    private let unknown: Int
    private let prefix: [UInt8]
    private let mostCharacters: Int

    init(_ vocabulary: Vocabulary, unknown: [UInt8], prefix: [UInt8], mostCharacters: Int) throws {
        self.vocabulary = vocabulary
        self.unknown = vocabulary.id(unknown)
        self.prefix = prefix
        self.mostCharacters = mostCharacters
        if self.unknown < 0 {
            throw TokenizerError("tokenizer.json: model: unknown words are a piece that the vocabulary does not have.")
        }
    }

    func tokenize(_ word: [Int]) -> Tokens {
        let out: Tokens = Tokens()
        if word.count > mostCharacters {
            return unknownWord(word)
        }
        var bytes: [UInt8] = []
        var places: [Int] = [0] // of each character, where its bytes start
        for code in word {
            bytes.append(contentsOf: Texts.encode(code))
            places.append(bytes.count)
        }
        var start: Int = 0
        while start < word.count {
            let head: [UInt8] = start == 0 ? [] : prefix
            var end: Int = word.count
            while end > start + 1 && places[end] - places[start] + head.count > vocabulary.longest {
                end -= 1
            }
            var id: Int = -1
            while end > start {
                id = vocabulary.id(head + Array(bytes[places[start]..<places[end]]))
                if id >= 0 {
                    break
                }
                end -= 1
            }
            if id < 0 {
                return unknownWord(word)
            }
            out.add(id, start, end)
            start = end
        }
        return out
    }

    private func unknownWord(_ word: [Int]) -> Tokens {
        let out: Tokens = Tokens()
        out.add(unknown, 0, word.count)
        return out
    }
}
