package org.pocketbert.artefacts;

import java.util.List;

/**
 * Says how texts become inputs and outputs become answers.
 *
 * @param maxLength longest input in tokens, special ones included
 * @param pairOrder meaning of the two texts of a pair, in order
 * @param padsLeft whether padding stands before the text
 * @param keepsEnd whether the beginning of a text that is too long is cut off, and not its end
 * @param score turns outputs into scores: {@code softmax}, {@code sigmoid}, {@code none}, or {@code by-head} of several heads
 * @param prompt the default prompt, a text that is put in front of a text, of a pair in front of the first one; empty for none
 * @param thresholds probability from which each label is given (multi-label); empty for other tasks
 * @param unknown probability below which an answer of any file is unknown (text-classification); 0 where there is none, or each
 *     file has its own
 * @param stride tokens that two windows of a long context share (question answering)
 * @param answerLength longest answer in tokens (question answering)
 * @param nullAnswers whether a question may have no answer (question answering)
 * @param splitsPunctuation whether a word also begins at a token that begins with punctuation or follows it (token-classification)
 * @param pooling how the file makes one vector of the tokens: {@code mean}, {@code cls} or others, several joined by plus signs; empty for other tasks
 * @param normalize whether that vector has length 1
 */
public record Processing(
        int maxLength,
        List<String> pairOrder,
        boolean padsLeft,
        boolean keepsEnd,
        String score,
        String prompt,
        double[] thresholds,
        double unknown,
        int stride,
        int answerLength,
        boolean nullAnswers,
        boolean splitsPunctuation,
        String pooling,
        boolean normalize) {
    private static final int MAX_LENGTH = 1 << 20;
    private static final int STRIDE = 128;
    private static final int ANSWER_LENGTH = 30;

    static Processing of(Fields fields, Task task, int labels) {
        String score = fields.text("score");
        boolean reranks = task == Task.REGRESSION && score.equals("sigmoid");
        if (!score.equals(task.score()) && !reranks) {
            throw new Fields.WrongField(
                    "processing.score is '" + score + "'; of " + task.hubName() + " it is " + task.score() + ".");
        }
        double[] thresholds = fields.numbers("thresholds");
        if (task == Task.MULTI_LABEL && thresholds.length != labels) {
            throw new Fields.WrongField(
                    "processing.thresholds has " + thresholds.length + " numbers for " + labels + " labels.");
        }
        List<String> order = fields.texts("pair_order");
        return new Processing(
                (int) fields.whole("max_length", 1, MAX_LENGTH),
                order.size() == 2 ? List.copyOf(order) : List.of("text", "text_pair"),
                isLeft(fields, "padding_side"),
                isLeft(fields, "truncation_side"),
                score,
                defaultPrompt(fields),
                thresholds,
                fields.has("unknown") ? fields.number("unknown", 0, 1) : 0,
                fields.has("stride") ? (int) fields.whole("stride", 1, MAX_LENGTH) : STRIDE,
                fields.has("answer_length") ? (int) fields.whole("answer_length", 1, MAX_LENGTH) : ANSWER_LENGTH,
                fields.flag("null_answers", false),
                fields.flag("splits_punctuation", false),
                fields.text("pooling", ""),
                fields.flag("normalize", false));
    }

    private static boolean isLeft(Fields fields, String key) {
        String side = fields.text(key, "right");
        if (!side.equals("right") && !side.equals("left")) {
            throw new Fields.WrongField("processing." + key + " is '" + side + "'; allowed: right, left.");
        }
        return side.equals("left");
    }

    /** Reads the prompt that {@code default_prompt} names; empty where it names none. */
    private static String defaultPrompt(Fields fields) {
        if (!fields.has("default_prompt")) {
            return "";
        }
        String name = fields.anyText("default_prompt");
        if (!fields.has("prompts") || !fields.fields("prompts").has(name)) {
            throw new Fields.WrongField("processing.default_prompt is '" + name + "', which is not in processing.prompts.");
        }
        return fields.fields("prompts").anyText(name);
    }
}
