"""silverspoon-kd: three layers of our fine-tuned teacher, distilled from its logits; batches, steps, rate and temperature of the demo."""

from __future__ import annotations

from datasets import Dataset
from job import columns, read_job, write_answers
from silverspoon_kd import ResponseBasedDistiller, TrainingArguments, reconfig_model
from silverspoon_kd.losses import kl_divergence_loss
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

job = read_job()
teacher = AutoModelForSequenceClassification.from_pretrained(job.teacher)
tokenizer = AutoTokenizer.from_pretrained(job.teacher)
student = reconfig_model(teacher, "student", {"num_hidden_layers": 3}, copy_matching_weights=True)
texts, labels = columns(job.train)
rows = Dataset.from_dict(
    {**tokenizer(texts, truncation=True, max_length=64), "labels": [teacher.config.label2id[name] for name in labels]}
)
distiller = ResponseBasedDistiller(
    student_model=student,
    teacher_model=teacher,
    soft_loss_fn=kl_divergence_loss(temperature=2.0),
    train_dataset=rows,
    data_collator=DataCollatorWithPadding(tokenizer),
    args=TrainingArguments(
        output_dir=str(job.out / "run"),
        max_steps=160,
        per_device_train_batch_size=64,
        learning_rate=3e-4,
        use_cpu=True,
        save_strategy="no",
        seed=7,
    ),
)
distiller.train()
student.save_pretrained(job.out / "student")
tokenizer.save_pretrained(job.out / "student")
made = job.out / "student"
write_answers(
    job, {"kind": "transformers", "files": [made / "model.safetensors", made / "tokenizer.json"], "folder": made}
)
