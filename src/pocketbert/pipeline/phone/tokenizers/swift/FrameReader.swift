// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Reads the post-processor of tokenizer.json.
final class FrameReader {
    static let supported: [String] = [
        "BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing",
    ]

    private var trims: [Bool] = []
    private var framed: Bool = false
    private var keepsTypes: Bool = false
    private var single: [Slot] = [Slot(Slot.first, -1)]
    private var pair: [Slot] = [Slot(Slot.first, -1), Slot(Slot.second, -1)]

    private init() {
    }

    static func read(_ value: JsonValue?, _ location: String) throws -> Frame {
        let reader: FrameReader = FrameReader()
        if let step = value {
            try reader.read(step, at: location)
        }
        return Frame(single: reader.single, pair: reader.pair, trims: reader.trims, keepsTypes: reader.keepsTypes)
    }

    private func read(_ value: JsonValue, at location: String) throws {
        let fields: Fields = try Fields(value, location: location)
        let type: String = Texts.string(try fields.text("type"))
        if framed {
            throw fields.refused("the post-processor '\(type)' behind one that adds special tokens is not supported.")
        }
        switch type {
        case "Sequence":
            for step in try fields.list("processors") {
                try read(step, at: location)
            }
        case "ByteLevel":
            _ = fields.take("use_regex") // of the pre-tokenizer; it has no meaning here
            try readTrim(fields)
        case "BertProcessing":
            let cls: Int = try token(fields, "cls")
            let sep: Int = try token(fields, "sep")
            single = [Slot(cls, 0), Slot(Slot.first, -1), Slot(sep, 0)]
            pair = [Slot(cls, 0), Slot(Slot.first, -1), Slot(sep, 0), Slot(Slot.second, -1), Slot(sep, 1)]
            framed = true
        case "RobertaProcessing":
            let cls: Int = try token(fields, "cls")
            let sep: Int = try token(fields, "sep")
            try readTrim(fields)
            single = [Slot(cls, 0), Slot(Slot.first, 0), Slot(sep, 0)]
            pair = [
                Slot(cls, 0), Slot(Slot.first, 0), Slot(sep, 0), Slot(sep, 0), Slot(Slot.second, 0), Slot(sep, 0),
            ]
            framed = true
        case "TemplateProcessing":
            let specials: Fields = try fields.object("special_tokens")
            single = try slots(fields, "single", specials, texts: 1)
            pair = try slots(fields, "pair", specials, texts: 2)
            keepsTypes = true
            framed = true
        default:
            let known: String = FrameReader.supported.joined(separator: ", ")
            throw fields.refused("the post-processor '\(type)' is not supported; supported are \(known).")
        }
        try fields.done()
    }

    private func readTrim(_ fields: Fields) throws {
        let prefix: Bool = try fields.flag("add_prefix_space")
        if try fields.flag("trim_offsets") {
            trims.append(prefix)
        }
    }

    private func token(_ fields: Fields, _ name: String) throws -> Int {
        let both: [JsonValue] = try fields.list(name)
        if both.count != 2 {
            throw fields.refused("'\(name)' must be a token and its id.")
        }
        return try fields.whole(both[1], name: name)
    }

    private func slots(_ fields: Fields, _ key: String, _ specials: Fields, texts: Int) throws -> [Slot] {
        var out: [Slot] = []
        var firsts: Int = 0
        var seconds: Int = 0
        for step in try fields.list(key) {
            let one: Fields = try Fields(step, location: fields.location + "." + key)
            if let content = one.take("Sequence") {
                let inside: Fields = try Fields(content, location: one.location)
                let isFirst: Bool = Texts.string(try inside.text("id")) == "A"
                firsts += isFirst ? 1 : 0
                seconds += isFirst ? 0 : 1
                out.append(Slot(isFirst ? Slot.first : Slot.second, try inside.number("type_id")))
            } else {
                let inside: Fields = try one.object("SpecialToken")
                let named: Fields = try specials.object(Texts.string(try inside.text("id")))
                let type: Int = try inside.number("type_id")
                for id in try named.list("ids") {
                    out.append(Slot(try named.whole(id, name: "ids"), type))
                }
            }
        }
        if firsts != 1 || seconds != texts - 1 {
            throw fields.refused("'\(key)' must have each text once.")
        }
        return out
    }
}
