use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::folder::{
    CHAT_TEMPLATE, PROCESSOR_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, TOOLS_TEMPLATE,
};
use crate::seal;

pub(crate) fn folder<'a>(
    mask_token: Option<u32>,
    target: Option<&'a Path>,
) -> LanguageModelFolder<'a> {
    let values = vec![1.0, -2.0, 0.5, 3.0];
    LanguageModelFolder {
        config: json!({ "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "vocab_size": 2 }),
        tensors: named(vec![
            NamedTensor::from_f32("embed_tokens.weight", [2, 2], values.clone()),
            NamedTensor::from_f32("lm_head.weight", [2, 2], values),
        ]),
        dtype: DType::BF16,
        mask_token,
        target,
    }
}

#[test]
fn a_written_folder_has_the_names_types_and_text_files_of_an_ordinary_model() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("config.json"), r#"{"eos_token_id": [7, 8]}"#).unwrap();
    fs::write(target.join("tokenizer.json"), "the tokenizer").unwrap();
    let dir = root.path().join("drafter");
    folder(Some(1), Some(&target))
        .write(&dir, &json!({"a": 1}))
        .unwrap();
    let read = ModelFolder::open(&dir).unwrap();
    let names: Vec<_> = read
        .tensors()
        .map(|info| (info.name.as_str(), info.dtype))
        .collect();
    let expected = [
        ("lm_head.weight", DType::BF16),
        ("model.embed_tokens.weight", DType::BF16),
    ];
    assert_eq!(names, expected);
    let config = read.config();
    assert_eq!(config["eos_token_id"], json!([7, 8]));
    assert_eq!(
        (&config["pard_token"], &config["spd_type"]),
        (&json!(1), &json!("pard"))
    );
    assert_eq!(config["torch_dtype"], "bfloat16");
    assert_eq!(
        fs::read_to_string(dir.join("tokenizer.json")).unwrap(),
        "the tokenizer"
    );
    assert!(seal::provenance(config).is_some());
    assert_eq!(read_mask_token(&read).unwrap(), 1);
}

#[test]
fn a_drafter_has_the_targets_files_that_lie_beside_its_weights() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("target");
    let tools = target.join(TOOLS_TEMPLATE);
    fs::create_dir_all(tools.parent().unwrap()).unwrap();
    fs::write(tools, "with tools").unwrap();
    fs::write(target.join("config.json"), "{}").unwrap();
    let beside = [
        CHAT_TEMPLATE,
        PROCESSOR_TEMPLATE,
        GENERATION_CONFIG,
        "merges.txt",
        TOKENIZER,
        TOKENIZER_CONFIG,
    ];
    for name in beside {
        fs::write(target.join(name), "{}").unwrap();
    }
    let dir = root.path().join("drafter");
    let drafter = folder(None, Some(&target));
    drafter.write(&dir, &Value::Null).unwrap();
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.retain(|name| name != "config.json" && name != WEIGHTS);
    names.sort();
    assert_eq!(names, beside);
}

#[test]
fn a_model_is_told_from_pard_and_from_eagle() {
    let root = tempfile::tempdir().unwrap();
    let written = |mask_token| {
        let dir = root.path().join(format!("{mask_token:?}"));
        folder(mask_token, None).write(&dir, &Value::Null).unwrap();
        ModelFolder::open(dir).unwrap()
    };
    let (model, pard) = (written(None), written(Some(0)));
    let (plain, pard) = (model.config().clone(), pard.config().clone());
    assert!(recognises(&plain) && mask_token(&plain).is_none());
    assert!(!recognises(&pard) && mask_token(&pard).is_some());
    // EAGLE's first drafters call themselves models of one layer, too.
    assert!(!(crate::eagle1::EAGLE1.recognises)(&model));
    assert!(!recognises(
        &json!({ "architectures": ["EagleLlamaForCausalLM"] })
    ));
}

#[test]
fn parameters_that_are_not_finite_are_not_written() {
    let root = tempfile::tempdir().unwrap();
    let mut broken = folder(None, None);
    broken.tensors[0] = NamedTensor::from_f32("model.embed_tokens.weight", [1], vec![f32::NAN]);
    let error = broken
        .write(&root.path().join("d"), &Value::Null)
        .unwrap_err();
    assert!(
        error.to_string().contains("model.embed_tokens.weight"),
        "{error}"
    );
    assert!(!root.path().join("d").exists());
}

#[test]
fn a_mask_token_that_is_no_id_is_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let mut wrong = folder(None, None);
    wrong.config["pard_token"] = json!("mask");
    wrong.write(&root.path().join("d"), &Value::Null).unwrap();
    let folder = ModelFolder::open(root.path().join("d")).unwrap();
    let error = read_mask_token(&folder).unwrap_err().to_string();
    assert!(
        error.contains("pard_token") && error.contains("mask"),
        "{error}"
    );
}

#[test]
fn launch_lines_name_the_method_of_each_engine() {
    let lines = pard_launch_lines(Path::new("d"), "t", 8);
    assert!(
        lines[0].text.contains(r#""parallel_drafting":true"#),
        "{lines:?}"
    );
    let lines = launch_lines(Path::new("d"), "t", 3);
    assert!(
        lines[0].text.contains("draft_model") && !lines[0].text.contains("parallel"),
        "{lines:?}"
    );
    assert!(lines[1].text.contains("STANDALONE"), "{lines:?}");
}
