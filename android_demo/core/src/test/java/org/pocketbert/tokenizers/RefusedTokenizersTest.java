package org.pocketbert.tokenizers;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.Test;

/** Tests that what a file has and this reader has not is refused by name, and that broken files are. */
public final class RefusedTokenizersTest {
    private static final String VOCABULARY = "'vocab':{'?':0,'a':1,'b':2,'ab':3}";

    private static void refused(String file, String message) {
        TokenizerException error = assertThrows(message, TokenizerException.class, () -> TinyFiles.read(file));
        assertTrue(error.getMessage() + " does not say " + message, error.getMessage().contains(message));
        assertTrue(error.getMessage(), error.getMessage().startsWith("tokenizer.json"));
    }

    private static String with(String part, String value) {
        return TinyFiles.file(
                part.equals("added") ? value : "", part.equals("normalizer") ? value : "null",
                part.equals("pre_tokenizer") ? value : "null", part.equals("post_processor") ? value : "null",
                part.equals("model") ? value : TinyFiles.WORDPIECE);
    }

    /** Steps of other kinds, at any depth, and unknown settings of known ones. */
    @Test
    public void unknownStepsAreNamed() {
        refused(with("normalizer", "{'type':'Future'}"), "normalizer: the normalizer 'Future' is not supported; supported are BertNormalizer");
        refused(with("normalizer", "{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Other'}]}"), "normalizers[1]: the normalizer 'Other'");
        refused(with("normalizer", "{'type':'NFC','form':2}"), "'form' is not known here");
        refused(with("normalizer", "{'type':'Strip','strip_left':'yes','strip_right':true}"), "'strip_left' is 'yes', it must be true or false");
        refused(with("normalizer", "{'type':'Sequence','normalizers':[null]}"), "one of its steps is null");
        refused(with("normalizer", "'NFC'"), "'NFC' is no object");
        refused(with("normalizer", "{}"), "'type' is null, it must be a text");
        refused(with("normalizer", "{'type':'Precompiled','precompiled_charsmap':'AAAA'}"), "has 3 bytes, at least 4");
        refused(with("normalizer", "{'type':'Precompiled','precompiled_charsmap':'/////w=='}"), "'precompiled_charsmap' names");
        refused(with("normalizer", "{'type':'Precompiled','precompiled_charsmap':'AAA'}"), "has 3 characters, Base64 has groups of four");
        refused(with("normalizer", "{'type':'Precompiled','precompiled_charsmap':'AA!A'}"), "is no Base64 at character 2");
        refused(with("pre_tokenizer", "{'type':'UnicodeScripts'}"), "the pre-tokenizer 'UnicodeScripts' is not supported");
        refused(with("pre_tokenizer", "{'type':'CharDelimiterSplit','delimiter':'ab'}"), "must be one character");
        refused(with("pre_tokenizer", "{'type':'Punctuation','behavior':'Dropped'}"), "'behavior' is 'Dropped'; allowed are Removed");
        refused(with("pre_tokenizer", "{'type':'Metaspace','replacement':'_','prepend_scheme':'often'}"), "'prepend_scheme' is 'often'");
        refused(with("pre_tokenizer", "{'type':'Split','pattern':{'String':''},'behavior':'Removed','invert':false}"), "an empty pattern");
    }

    /** Regular expressions beyond those that tokenizers use. */
    @Test
    public void unknownRegularExpressionsAreNamed() {
        Map<String, String> wrong = new LinkedHashMap<>();
        wrong.put("(?i:a)", "a group that starts with (?i");
        wrong.put("(a)\\\\1", "the escape \\1");
        wrong.put("(?<name>a)", "a group that starts with (?<");
        wrong.put("\\\\p{Klingon}", "the class of characters 'Klingon'");
        wrong.put("\\\\R", "the escape \\R");
        wrong.put("(a*)*", "the endless repetition of what may be empty");
        wrong.put("(a", "'(' without ')'");
        wrong.put("a)", "')' without '('");
        wrong.put("[a", "an end in the middle");
        wrong.put("a**", "a repetition of a repetition");
        wrong.put("*a", "'*' with nothing before it");
        wrong.put("a{3,1}", "a wrong count");
        wrong.put("a{5000}", "a count that is no number up to 1000");
        wrong.put("(?<=a+)b", "a look behind of more than 255");
        wrong.put("[z-a]", "a range whose end is before its start");
        wrong.put("\\\\x{110000}", "which is no character");
        wrong.put("((a{900}){900}){900}", "more than 10000 steps");
        wrong.put("(".repeat(200) + ")".repeat(200), "groups inside each other");
        wrong.forEach((pattern, message) -> refused(
                with("normalizer", "{'type':'Replace','pattern':{'Regex':'" + pattern + "'},'content':''}"), message));
    }

    /** Frames around the texts. */
    @Test
    public void wrongFramesAreNamed() {
        String template = "{'type':'TemplateProcessing','single':[SINGLE],'pair':[{'Sequence':{'id':'A','type_id':0}},{'Sequence':{'id':'B','type_id':1}}],"
                + "'special_tokens':{'x':{'id':'x','ids':[1],'tokens':['x']}}}";
        String text = "{'Sequence':{'id':'A','type_id':0}}";
        refused(with("post_processor", "{'type':'Future'}"), "the post-processor 'Future' is not supported");
        refused(with("post_processor", template.replace("SINGLE", "")), "'single' must have each text once");
        refused(with("post_processor", template.replace("SINGLE", text + "," + text)), "'single' must have each text once");
        refused(with("post_processor", template.replace("SINGLE", text + ",{'SpecialToken':{'id':'y','type_id':0}}")), "'y' is not among its special tokens");
        refused(with("post_processor", "{'type':'BertProcessing','sep':['[SEP]'],'cls':['[CLS]',1]}"), "'sep' is");
        refused(with("post_processor", "{'type':'Sequence','processors':[" + TinyFiles.BERT + "," + TinyFiles.BERT + "]}"), "behind one that adds special tokens");
    }

    /** Models. */
    @Test
    public void wrongModelsAreNamed() {
        refused(with("model", "{'type':'Future'," + VOCABULARY + "}"), "a model of type 'Future' is not supported");
        refused(with("model", "{'type':'WordPiece','unk_token':'[UNK]','vocab':{}}"), "its vocabulary is empty");
        refused(with("model", "{'type':'WordPiece','unk_token':'[UNK]'," + VOCABULARY + "}"), "'[UNK]', which the vocabulary does not have");
        refused(with("model", "{'type':'WordPiece','unk_token':'a','vocab':{'a':0,'a':1}}"), "has the piece 'a' twice");
        refused(with("model", "{'type':'WordPiece','unk_token':'a','vocab':{'a':-1}}"), "has the id -1");
        refused(with("model", "{'type':'WordPiece','unk_token':'a','vocab':{'a':99999999}}"), "has the id 99999999");
        refused(with("model", "{'type':'WordPiece','unk_token':'a','vocab':{'a':'x'}}"), "piece 'a' has the id STRING");
        refused(with("model", "{'type':'BPE','dropout':0.1," + VOCABULARY + ",'merges':[]}"), "'dropout' is not supported");
        refused(with("model", "{'type':'BPE'," + VOCABULARY + ",'merges':['a c']}"), "names a piece that the vocabulary does not have");
        refused(with("model", "{'type':'BPE'," + VOCABULARY + ",'merges':['abc']}"), "must be two pieces with one blank");
        refused(with("model", "{'type':'BPE'," + VOCABULARY + "}"), "not those of a model of type 'BPE'");
        refused(with("model", "{'type':'BPE','byte_fallback':true,'end_of_word_suffix':'_'," + VOCABULARY + ",'merges':[]}"), "'byte_fallback' with");
        refused(with("model", "{'type':'Unigram','unk_id':7,'vocab':[['a',-1.0]]}"), "'unk_id' is 7");
        refused(with("model", "{'type':'Unigram','unk_id':null,'vocab':[['a',-1.0]]}"), "'unk_id' is missing");
        refused(with("model", "{'type':'Unigram','unk_id':0,'vocab':[['a','x']]}"), "the score 'STRING' is no number");
        refused(with("model", "{'type':'Unigram','unk_id':0,'vocab':[['a',-1.0]],'nbest':3}"), "'nbest' is not known here");
        refused(with("model", "{'type':'WordLevel','unk_token':'a','vocab':{'a':0},'vocab':{'a':0}}"), "the key 'vocab' is there twice");
    }

    /** Whole files. */
    @Test
    public void brokenFilesAreRefused() {
        String whole = TinyFiles.bert();
        refused("", "not a tokenizer");
        refused("[]", "not a tokenizer");
        refused("{}", "it has no model");
        refused(whole.substring(0, whole.length() / 2), "not a tokenizer");
        refused(whole + "{}", "not a tokenizer");
        refused(whole.replace("\"1.0\"", "\"2.0\""), "version '2.0' is not supported");
        refused(whole.replace("\"decoder\"", "\"encoder\""), "'encoder' is not known here");
        refused(whole.replace("\"decoder\"", "\"padding\""), "the key 'padding' is there twice");
        refused(with("added", "{'id':1}"), "added_tokens[0]");
        refused(with("normalizer", "[".repeat(100) + "]".repeat(100)), "more than 32 levels");
        String twice = TinyFiles.ADDED.replace("'normalized':false", "'normalized':true");
        refused(TinyFiles.file(
                twice.replace("ID", "9").replace("TOKEN", "X") + "," + twice.replace("ID", "10").replace("TOKEN", "x"),
                "{'type':'Lowercase'}", "null", "null", TinyFiles.WORDPIECE), "is, once normalized, the same as");
    }

    /** A vocabulary behind its merges, and models without a type, are read as the library reads them. */
    @Test
    public void unusualOrderIsRead() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(with("model", "{'merges':[['a','b']]," + VOCABULARY + ",'unk_token':'?'}"));
        assertEquals(3, tokenizer.encode("ab").ids()[0]);
        assertNotNull(TinyFiles.read(with("model", TinyFiles.WORDPIECE.replace("'type':'WordPiece',", ""))));
    }
}
