// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Reads the scores of a unigram model as the `tokenizers` library reads them.
///
/// Its JSON library rounds twice: the digits to a double, then that divided by a power of ten. One score in eight is off by its last
/// bit, which decides between two ways to cut a word that score the same.
enum Scores {
    private static let mostPower: Int = 308
    private static let tenth: UInt64 = 1844674407370955161 // of the largest number
    private static let powers: [Double] = Scores.made()

    static func parse(_ text: [UInt8]) throws -> Double {
        var digits: UInt64 = 0
        var exponent: Int = 0
        var full: Bool = false
        var behindPoint: Bool = false
        var negative: Bool = false
        var at: Int = 0
        while at < text.count {
            let next: Int = Int(text[at])
            if next == 0x65 || next == 0x45 {
                break
            }
            at += 1
            if next == 0x2D {
                negative = true
                continue
            }
            if next == 0x2E {
                behindPoint = true
                full = false
                continue
            }
            let digit: Int = next - 0x30
            if digit < 0 || digit > 9 {
                throw TokenizerError("tokenizer.json: model: the score '\(Texts.string(text))' is no number.")
            }
            full = full || digits > tenth || (digits == tenth && digit > 5) // the next digit would not fit
            if !full {
                digits = digits * 10 + UInt64(digit)
            }
            if behindPoint {
                exponent -= full ? 0 : 1
            } else {
                exponent += full ? 1 : 0
            }
        }
        exponent += power(text, at + 1)
        let out: Double = try scaled(Double(digits), exponent)
        return negative ? -out : out
    }

    private static func power(_ text: [UInt8], _ start: Int) -> Int {
        var out: Int = 0
        var sign: Int = 1
        var at: Int = start
        while at < text.count && at < start + 6 {
            let next: Int = Int(text[at])
            if next == 0x2D {
                sign = -1
            } else if next != 0x2B {
                out = out * 10 + next - 0x30
            }
            at += 1
        }
        return sign * out
    }

    private static func scaled(_ digits: Double, _ power: Int) throws -> Double {
        var out: Double = digits
        var exponent: Int = power
        while exponent < -mostPower && out != 0 {
            out = Texts.divide(out, powers[mostPower])
            exponent += mostPower
        }
        if out == 0 {
            return 0
        }
        if exponent > mostPower {
            throw TokenizerError("tokenizer.json: model: a score is too large for a number.")
        }
        return exponent >= 0 ? out * powers[exponent] : Texts.divide(out, powers[-exponent])
    }

    private static func made() -> [Double] {
        var out: [Double] = []
        for exponent in 0..<309 {
            if let ten = Double("1e" + String(exponent)) {
                out.append(ten)
            }
        }
        return out
    }
}

/// The best ways to cut a word, by the place that they reach.
final class Lattice {
    private(set) var best: [Double]
    /// 0: not reached; else the start of the last piece, plus 1.
    private(set) var origins: [Int]
    private(set) var ids: [Int]

    init(_ length: Int) {
        self.best = [Double](repeating: 0, count: length + 1)
        self.origins = [Int](repeating: 0, count: length + 1)
        self.ids = [Int](repeating: 0, count: length + 1)
    }

    func offer(_ start: Int, _ end: Int, _ score: Double, _ id: Int) {
        let candidate: Double = score + best[start]
        if origins[end] == 0 || candidate > best[end] {
            best[end] = candidate
            origins[end] = start + 1
            ids[end] = id
        }
    }
}

/// Cuts a word into the pieces with the largest sum of scores, as SentencePiece's unigram models do.
final class Unigram: Model {
    let vocabulary: Vocabulary
    let scored: Bool = true
    private let pieces: [[UInt8]]
    private let scores: [Double]
    private let unknown: Int
    private let unknownScore: Double
    private let byteFallback: Bool
    private let sorted: [Int]
    private let firstBytes: [Int]

    /// Makes one; the id of each piece is its index.
    init(_ vocabulary: Vocabulary, pieces: [[UInt8]], scores: [Double], unknown: Int, byteFallback: Bool) {
        var least: Double = scores[0]
        for score in scores {
            least = min(least, score)
        }
        let order: [Int] = Unigram.ordered(pieces)
        var firsts: [Int] = []
        var entry: Int = 0
        for first in 0..<257 {
            while entry < order.count && Unigram.byte(pieces[order[entry]], 0) < first {
                entry += 1
            }
            firsts.append(entry)
        }
        self.vocabulary = vocabulary
        self.pieces = pieces
        self.scores = scores
        self.unknown = unknown
        self.unknownScore = least - 10
        self.byteFallback = byteFallback
        self.sorted = order
        self.firstBytes = firsts
    }

    func tokenize(_ word: [Int]) -> Tokens {
        var bytes: [UInt8] = []
        var owners: [Int] = [] // of each byte, its character
        for index in 0..<word.count {
            for byte in Texts.encode(word[index]) {
                bytes.append(byte)
                owners.append(index)
            }
        }
        let lattice: Lattice = Lattice(bytes.count)
        var start: Int = 0
        while start < bytes.count {
            var end: Int = start + 1
            while end < bytes.count && owners[end] == owners[start] {
                end += 1
            }
            if !reach(bytes, start, end, lattice) {
                lattice.offer(start, end, unknownScore, unknown)
            }
            start = end
        }
        return collect(bytes, owners, lattice)
    }

    /// Offers all pieces that start at a place; returns whether one is the single character there.
    private func reach(_ word: [UInt8], _ start: Int, _ single: Int, _ lattice: Lattice) -> Bool {
        var found: Bool = false
        var low: Int = firstBytes[Int(word[start])]
        var high: Int = firstBytes[Int(word[start]) + 1]
        var size: Int = 1
        while low < high {
            if pieces[sorted[low]].count == size { // the shortest of a range come first, equal ones side by side
                while low + 1 < high && pieces[sorted[low + 1]].count == size {
                    low += 1
                }
                let id: Int = sorted[low] // of equal pieces the last one counts, and the sort keeps their order
                low += 1
                lattice.offer(start, start + size, scores[id], id)
                found = found || start + size == single
            }
            if start + size >= word.count {
                break
            }
            let next: Int = Int(word[start + size])
            low = bound(low, high, size, next)
            high = bound(low, high, size, next + 1)
            size += 1
        }
        return found
    }

    private func collect(_ word: [UInt8], _ owners: [Int], _ lattice: Lattice) -> Tokens {
        let out: Tokens = Tokens()
        var ends: [Int] = []
        var place: Int = word.count
        while place > 0 {
            ends.append(place)
            place = lattice.origins[place] - 1
        }
        var start: Int = 0
        var index: Int = ends.count - 1
        while index >= 0 {
            var end: Int = ends[index]
            let id: Int = lattice.ids[end]
            index -= 1
            while id == unknown && index >= 0 && lattice.ids[ends[index]] == unknown { // neighbours become one token
                end = ends[index]
                index -= 1
            }
            add(Array(word[start..<end]), id, owners[start], owners[end - 1] + 1, out)
            start = end
        }
        return out
    }

    private func add(_ bytes: [UInt8], _ known: Int, _ start: Int, _ end: Int, _ out: Tokens) {
        let id: Int = known == unknown ? vocabulary.id(bytes) : known
        let single: [Int] = id < 0 && byteFallback ? vocabulary.byteIds(bytes) : []
        if single.isEmpty {
            out.add(id < 0 ? unknown : id, start, end)
        }
        for byteId in single {
            out.add(byteId, start, end)
        }
    }

    /// A byte of a piece; -1 behind its end.
    private static func byte(_ piece: [UInt8], _ depth: Int) -> Int {
        return piece.count <= depth ? -1 : Int(piece[depth])
    }

    /// The first index from `low` on whose byte at a depth is at least one.
    private func bound(_ low: Int, _ high: Int, _ depth: Int, _ least: Int) -> Int {
        var from: Int = low
        var to: Int = high
        while from < to {
            let middle: Int = (from + to) / 2
            if Unigram.byte(pieces[sorted[middle]], depth) < least {
                from = middle + 1
            } else {
                to = middle
            }
        }
        return from
    }

    /// The pieces in the order of their bytes; equal ones stay as they are.
    private static func ordered(_ pieces: [[UInt8]]) -> [Int] {
        var now: [Int] = []
        for index in 0..<pieces.count {
            now.append(index)
        }
        var width: Int = 1
        while width < now.count {
            var next: [Int] = []
            var low: Int = 0
            while low < now.count {
                let middle: Int = min(low + width, now.count)
                let high: Int = min(low + 2 * width, now.count)
                var left: Int = low
                var right: Int = middle
                while left < middle || right < high {
                    if right >= high || (left < middle && !isBefore(pieces[now[right]], pieces[now[left]])) {
                        next.append(now[left])
                        left += 1
                    } else {
                        next.append(now[right])
                        right += 1
                    }
                }
                low += 2 * width
            }
            now = next
            width = 2 * width
        }
        return now
    }

    private static func isBefore(_ one: [UInt8], _ other: [UInt8]) -> Bool {
        var at: Int = 0
        while at < one.count && at < other.count {
            if one[at] != other[at] {
                return one[at] < other[at]
            }
            at += 1
        }
        return one.count < other.count
    }
}
