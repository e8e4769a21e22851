// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

import Foundation

/// Says why a tokenizer.json is not opened, or an input not made: the place, the value, and what is allowed there.
public struct TokenizerError: Error, CustomStringConvertible {
    public let message: String

    init(_ message: String) {
        self.message = message
    }

    public var description: String {
        return message
    }
}

/// Conversions of text. Strings are never compared or hashed: Swift takes a letter with an accent and the same two characters for equal.
enum Texts {
    /// The Unicode scalars of a text.
    static func codePoints(_ text: String) -> [Int] {
        return text.unicodeScalars.map { scalar in Int(scalar.value) }
    }

    /// The UTF-8 of a text.
    static func utf8(_ text: String) -> [UInt8] {
        return Array(text.utf8)
    }

    /// The text of some UTF-8, for messages, and for names that are ASCII.
    static func string(_ bytes: [UInt8]) -> String {
        return String(decoding: bytes, as: UTF8.self)
    }

    /// The bytes of a file.
    static func bytes(_ data: Data) -> [UInt8] {
        return [UInt8](data)
    }

    /// The quotient of two numbers with fractions.
    static func divide(_ one: Double, _ other: Double) -> Double {
        return one / other
    }

    /// One code point as UTF-8.
    static func encode(_ code: Int) -> [UInt8] {
        if code < 0x80 {
            return [UInt8(code)]
        }
        let last: UInt8 = UInt8(0x80 + code % 64)
        let rest: Int = code / 64
        if code < 0x800 {
            return [UInt8(0xC0 + rest), last]
        }
        let middle: UInt8 = UInt8(0x80 + rest % 64)
        let first: Int = rest / 64
        if code < 0x10000 {
            return [UInt8(0xE0 + first), middle, last]
        }
        let second: UInt8 = UInt8(0x80 + first % 64)
        return [UInt8(0xF0 + first / 64), second, middle, last]
    }

    /// The code points of some valid UTF-8.
    static func decode(_ bytes: [UInt8]) -> [Int] {
        var out: [Int] = []
        var at: Int = 0
        while at < bytes.count {
            let lead: Int = Int(bytes[at])
            var more: Int = 0
            var code: Int = lead
            if lead >= 0xF0 {
                more = 3
                code = lead & 0x07
            } else if lead >= 0xE0 {
                more = 2
                code = lead & 0x0F
            } else if lead >= 0xC0 {
                more = 1
                code = lead & 0x1F
            }
            at += 1
            for _ in 0..<more {
                if at < bytes.count {
                    let byte: Int = Int(bytes[at])
                    code = code * 64 + byte % 64
                    at += 1
                }
            }
            out.append(code)
        }
        return out
    }
}
