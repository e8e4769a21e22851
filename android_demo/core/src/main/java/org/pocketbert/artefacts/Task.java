package org.pocketbert.artefacts;

import java.util.List;

/** Names what a model does, by the names of the Hugging Face Hub. */
public enum Task {
    /** One label of several, for a text or a pair. */
    TEXT_CLASSIFICATION("text-classification", "softmax", false, true, List.of("logits")),
    /** Any number of labels for a text. */
    MULTI_LABEL("multi-label", "sigmoid", false, true, List.of("logits")),
    /** One number for a text or a pair. */
    REGRESSION("regression", "none", false, false, List.of("logits")),
    /** Named pieces of a text. */
    TOKEN_CLASSIFICATION("token-classification", "softmax", true, true, List.of("logits")),
    /** A piece of a context that answers a question. */
    QUESTION_ANSWERING("question-answering", "softmax", true, false, List.of("start_logits", "end_logits")),
    /** Tokens for the masked places of a text. */
    FILL_MASK("fill-mask", "softmax", true, false, List.of("logits")),
    /** One vector for a text. */
    FEATURE_EXTRACTION("feature-extraction", "none", false, false, List.of("sentence_embedding")),
    /** Several heads on one encoder, each with a task and outputs of its own: see {@link NamedHead}. */
    SEVERAL("several", "by-head", false, true, List.of());

    private final String hubName;
    private final String score;
    private final boolean perToken;
    private final boolean namesLabels;
    private final List<String> outputs;

    Task(String hubName, String score, boolean perToken, boolean namesLabels, List<String> outputs) {
        this.hubName = hubName;
        this.score = score;
        this.perToken = perToken;
        this.namesLabels = namesLabels;
        this.outputs = outputs;
    }

    /** Returns the name on the Hub, such as {@code text-classification}. */
    public String hubName() {
        return hubName;
    }

    /** Returns what turns outputs into scores: {@code softmax}, {@code sigmoid}, {@code none}, or {@code by-head} of several heads. */
    public String score() {
        return score;
    }

    /** Returns whether the outputs have a row for each token. */
    public boolean perToken() {
        return perToken;
    }

    /** Returns whether the outputs have names. */
    public boolean namesLabels() {
        return namesLabels;
    }

    /** Returns the outputs that the answer is made from. */
    public List<String> outputs() {
        return outputs;
    }

    /** Returns whether it takes pairs of texts only. */
    public boolean pairsOnly() {
        return this == QUESTION_ANSWERING;
    }

    /** Returns whether it takes single texts only. */
    public boolean singlesOnly() {
        return this == TOKEN_CLASSIFICATION || this == FILL_MASK || this == FEATURE_EXTRACTION;
    }

    /** Returns whether one of several heads on one encoder can have it. */
    public boolean canBeOneOfSeveral() {
        return this == TEXT_CLASSIFICATION || this == MULTI_LABEL || this == REGRESSION || this == TOKEN_CLASSIFICATION;
    }

    /** Returns the task of a name on the Hub, or null where there is none. */
    public static Task named(String hubName) {
        for (Task task : values()) {
            if (task.hubName.equals(hubName)) {
                return task;
            }
        }
        return null;
    }
}
