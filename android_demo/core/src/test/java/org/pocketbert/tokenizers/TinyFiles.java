package org.pocketbert.tokenizers;

import java.io.IOException;
import java.io.StringReader;

/** Tiny tokenizer.json files of the tests of this package. */
final class TinyFiles {
    static final String ADDED = "{'id':ID,'content':'TOKEN','single_word':false,'lstrip':false,'rstrip':false,'normalized':false,'special':true}";
    static final String BERT_NORMALIZER =
            "{'type':'BertNormalizer','clean_text':true,'handle_chinese_chars':true,'strip_accents':null,'lowercase':true}";
    static final String WORDPIECE = "{'type':'WordPiece','unk_token':'[UNK]','continuing_subword_prefix':'##','max_input_chars_per_word':100,"
            + "'vocab':{'[UNK]':0,'[CLS]':1,'[SEP]':2,'a':3,'b':4,'##c':5,'d':6,'word':7,'##s':8}}";
    static final String BERT = "{'type':'BertProcessing','sep':['[SEP]',2],'cls':['[CLS]',1]}";

    private TinyFiles() {}

    static String added(int id, String token) {
        return ADDED.replace("ID", String.valueOf(id)).replace("TOKEN", token);
    }

    /** Returns a tokenizer.json of its parts, in which ' stands for ". */
    static String file(String added, String normalizer, String preTokenizer, String postProcessor, String model) {
        return ("{'version':'1.0','truncation':null,'padding':null,'added_tokens':[" + added + "],'normalizer':" + normalizer
                + ",'pre_tokenizer':" + preTokenizer + ",'post_processor':" + postProcessor + ",'decoder':null,'model':" + model + "}")
                .replace('\'', '"');
    }

    static String bert() {
        return file(added(1, "[CLS]") + "," + added(2, "[SEP]"), BERT_NORMALIZER, "{'type':'BertPreTokenizer'}", BERT, WORDPIECE);
    }

    static Tokenizer read(String file) throws IOException {
        return Tokenizer.read(new StringReader(file));
    }

    /** Returns a tokenizer of single letters, with a normalizer and a pre-tokenizer. */
    static Tokenizer letters(String normalizer, String preTokenizer) throws IOException {
        StringBuilder vocabulary = new StringBuilder();
        for (char letter = 'a'; letter <= 'z'; letter++) {
            vocabulary.append(",'").append(letter).append("':").append(letter - 'a' + 1);
        }
        return read(file("", normalizer, preTokenizer, "null",
                "{'type':'BPE','unk_token':'?','vocab':{'?':0" + vocabulary + "},'merges':[]}"));
    }
}
