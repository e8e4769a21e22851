// @pocketbert/runtime: opens an artefact folder of PocketBERT and answers texts as `pocketbert.load(folder).predict(texts)` does.
export { load, Model } from "./src/model.js";
export { Tokenizer } from "./src/tokenizer.js";
