// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Two tokens that become one, and the place of that rule in the order.
final class Merge {
    let rank: Int
    let result: Int

    init(rank: Int, result: Int) {
        self.rank = rank
        self.result = result
    }
}

/// What a BPE model's file says of unknown characters and of whole words.
final class BpeOptions {
    /// Id of the piece of unknown characters; -1 where they are left out.
    let unknown: Int
    /// Whether neighbouring unknown characters are one token.
    let fuseUnknown: Bool
    /// Whether a word that the vocabulary has is taken as it is.
    let ignoreMerges: Bool
    /// What pieces inside a word start with, and what the last piece of a word ends with; empty if nothing.
    let prefix: [UInt8]
    let suffix: [UInt8]
    /// Whether unknown characters become the pieces of their bytes, such as <0x41>.
    let byteFallback: Bool

    init(unknown: Int, fuseUnknown: Bool, ignoreMerges: Bool, prefix: [UInt8], suffix: [UInt8], byteFallback: Bool) {
        self.unknown = unknown
        self.fuseUnknown = fuseUnknown
        self.ignoreMerges = ignoreMerges
        self.prefix = prefix
        self.suffix = suffix
        self.byteFallback = byteFallback
    }
}

/// Cuts a word into characters and joins neighbours in the order of the merges (byte-pair encoding).
final class Bpe: Model {
    let vocabulary: Vocabulary
    let scored: Bool = false
    private let merges: [Int: Merge]
    private let options: BpeOptions

    init(_ vocabulary: Vocabulary, merges: [Int: Merge], options: BpeOptions) {
        self.vocabulary = vocabulary
        self.merges = merges
        self.options = options
    }

    static func key(_ left: Int, _ right: Int) -> Int {
        return (left << 32) | right
    }

    func tokenize(_ word: [Int]) -> Tokens {
        let out: Tokens = Tokens()
        var bytes: [UInt8] = []
        var owners: [Int] = [] // of each byte, its character
        for index in 0..<word.count {
            for byte in Texts.encode(word[index]) {
                bytes.append(byte)
                owners.append(index)
            }
        }
        if options.ignoreMerges {
            let whole: Int = vocabulary.id(bytes)
            if whole >= 0 {
                out.add(whole, 0, word.count)
                return out
            }
        }
        let symbols: Symbols = Symbols(merges)
        spell(word, symbols)
        symbols.merge()
        var at: Int = 0
        for index in 0..<symbols.count {
            let size: Int = symbols.sizes[index]
            if size > 0 {
                out.add(symbols.ids[index], owners[at], owners[at + size - 1] + 1)
                at += size
            }
        }
        return out
    }

    /// Finds the token of each character. What the vocabulary lacks is unknown, bytes, or left out, as the library does it.
    private func spell(_ word: [Int], _ symbols: Symbols) {
        var pending: Int = 0 // bytes of unknown characters that are not a symbol yet
        for index in 0..<word.count {
            let bytes: [UInt8] = Texts.encode(word[index])
            let head: [UInt8] = index == 0 ? [] : options.prefix
            let tail: [UInt8] = index == word.count - 1 ? options.suffix : []
            let id: Int = vocabulary.id(head + bytes + tail)
            let single: [Int] = id < 0 && options.byteFallback ? vocabulary.byteIds(bytes) : []
            if id >= 0 {
                symbols.flush(options.unknown, pending)
                pending = 0
                symbols.add(id, bytes.count)
            } else if !single.isEmpty {
                for byteId in single {
                    symbols.add(byteId, 1)
                }
            } else if options.unknown >= 0 {
                if !options.fuseUnknown {
                    symbols.flush(options.unknown, pending)
                    pending = 0
                }
                pending += bytes.count
            }
        }
        symbols.flush(options.unknown, pending)
    }
}

/// The symbols of a word as a linked list, and a heap of the merges that are possible.
final class Symbols {
    private(set) var ids: [Int] = []
    private(set) var sizes: [Int] = []
    private var previous: [Int] = []
    private var next: [Int] = []
    private let merges: [Int: Merge]
    private var heap: [Int] = [] // rank, then place
    private var results: [Int] = []

    init(_ merges: [Int: Merge]) {
        self.merges = merges
    }

    var count: Int {
        return ids.count
    }

    func add(_ id: Int, _ size: Int) {
        if ids.count > 0 {
            next[ids.count - 1] = ids.count
        }
        previous.append(ids.count - 1)
        next.append(-1)
        ids.append(id)
        sizes.append(size)
    }

    func flush(_ id: Int, _ size: Int) {
        if size > 0 {
            add(id, size)
        }
    }

    func merge() {
        var index: Int = 0
        while index + 1 < ids.count {
            offer(index, index + 1)
            index += 1
        }
        while heap.count > 0 {
            let place: Int = heap[0] & 0xFFFFFFFF
            let result: Int = results[0]
            pop()
            if sizes[place] > 0 && next[place] >= 0 {
                join(place, next[place], result)
            }
        }
    }

    private func join(_ place: Int, _ right: Int, _ result: Int) {
        guard let found = merges[Bpe.key(ids[place], ids[right])] else {
            return // one of both was merged since
        }
        if found.result != result {
            return
        }
        ids[place] = result
        sizes[place] += sizes[right]
        sizes[right] = 0
        next[place] = next[right]
        if next[right] >= 0 {
            previous[next[right]] = place
        }
        if previous[place] >= 0 {
            offer(previous[place], place)
        }
        if next[place] >= 0 {
            offer(place, next[place])
        }
    }

    private func offer(_ left: Int, _ right: Int) {
        guard let found = merges[Bpe.key(ids[left], ids[right])] else {
            return
        }
        let key: Int = (found.rank << 32) | left
        heap.append(key)
        results.append(found.result)
        var at: Int = heap.count - 1
        while at > 0 && heap[(at - 1) / 2] > key {
            heap[at] = heap[(at - 1) / 2]
            results[at] = results[(at - 1) / 2]
            at = (at - 1) / 2
        }
        heap[at] = key
        results[at] = found.result
    }

    private func pop() {
        let key: Int = heap.removeLast()
        let result: Int = results.removeLast()
        if heap.isEmpty {
            return
        }
        var at: Int = 0
        var child: Int = 1
        while child < heap.count {
            if child + 1 < heap.count && heap[child + 1] < heap[child] {
                child += 1
            }
            if heap[child] >= key {
                break
            }
            heap[at] = heap[child]
            results[at] = results[child]
            at = child
            child = 2 * at + 1
        }
        heap[at] = key
        results[at] = result
    }
}
