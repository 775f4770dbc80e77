use serde_json::json;

use super::*;
use crate::folder::write_folder;

/// Every size is different, so that a shape says which tensor it belongs to.
pub(crate) fn layout() -> MedusaLayout {
    MedusaLayout {
        hidden_size: 8,
        vocab_size: 20,
        draft_vocab_size: 11,
        heads: 3,
        layers: 2,
        bias: true,
        shared_head: false,
        dtype: DType::F32,
    }
}

pub(crate) fn tensors(layout: &MedusaLayout) -> Vec<NamedTensor> {
    let make = |(seed, (name, shape, dtype)): (usize, TensorSpec)| {
        let count = shape.iter().product::<usize>();
        if dtype == DType::I64 {
            return NamedTensor::from_i64(name, shape, (0..count as i64).collect());
        }
        let values = (0..count).map(|i| ((i + 3 * seed) % 17) as f32 / 8.0 - 1.0);
        NamedTensor::from_f32(name, shape, values.collect())
    };
    required(layout).into_iter().enumerate().map(make).collect()
}

fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[test]
fn what_is_written_is_read_back() {
    let parent = tempfile::tempdir().unwrap();
    let layouts = [
        layout(),
        MedusaLayout {
            draft_vocab_size: 20,
            shared_head: true,
            ..layout()
        },
    ];
    for (number, layout) in layouts.into_iter().enumerate() {
        let dir = parent.path().join(number.to_string());
        write(
            &dir,
            &layout,
            &tensors(&layout),
            &json!({"recipe": "medusa"}),
        )
        .unwrap();
        let (found, read_tensors) = read(&dir).unwrap();
        assert_eq!(found, layout);
        assert_eq!(sorted(read_tensors), sorted(tensors(&layout)));
    }
}

#[test]
fn the_configuration_has_the_keys_that_vllm_reads() {
    let config = to_json(&layout());
    let expected = json!({
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 8, "vocab_size": 20,
        "truncated_vocab_size": 11, "num_heads": 3, "num_hidden_layers": 2, "medusa_fc_bias": true,
        "original_lm_head": false, "logit_scale": 1.0, "torch_dtype": "float32",
    });
    assert_eq!(config, expected);
}

#[test]
fn a_missing_a_left_over_and_a_mis_shaped_tensor_are_refused_in_both_directions() {
    let parent = tempfile::tempdir().unwrap();
    let change = |change: &dyn Fn(&mut Vec<NamedTensor>)| {
        let mut changed = tensors(&layout());
        change(&mut changed);
        changed
    };
    let cases = [
        (change(&|t| drop(t.remove(1))), "`blocks.0.layers.0.bias`"),
        (
            change(&|t| t.push(NamedTensor::from_f32("extra", [1], vec![0.0]))),
            "`extra`",
        ),
        (
            change(&|t| t[1] = NamedTensor::from_f32("blocks.0.layers.0.bias", [7], vec![0.0; 7])),
            "expected [8], got [7]",
        ),
        (
            change(&|t| {
                let last = t.len() - 1;
                t[last] = NamedTensor::from_i64("token_map", [11], vec![3; 11]);
            }),
            "ascending token ids below 20",
        ),
    ];
    for (number, (changed, part)) in cases.into_iter().enumerate() {
        let dir = parent.path().join(number.to_string());
        let error = write(&dir, &layout(), &changed, &Value::Null).unwrap_err();
        assert!(error.to_string().contains(part), "writing: {error}");
        assert!(!dir.exists());
        write_folder(&dir, &to_json(&layout()), &changed, &[]).unwrap();
        let error = read(&dir).unwrap_err();
        assert!(error.to_string().contains(part), "reading: {error}");
    }
}

#[test]
fn the_authors_names_are_understood() {
    let parent = tempfile::tempdir().unwrap();
    let layout = MedusaLayout {
        draft_vocab_size: 20,
        ..layout()
    };
    let rename = |mut tensor: NamedTensor| {
        let name = tensor.name.replace("blocks.", "medusa_heads.");
        let name = name
            .replace(".layers.", ".")
            .replace(".weight", ".linear.weight");
        tensor.name = match name.strip_prefix("lm_heads.") {
            Some(rest) => format!("{}.2.weight", rest.split('.').next().unwrap()),
            None => name.replace(".bias", ".linear.bias"),
        };
        tensor
    };
    let renamed: Vec<_> = tensors(&layout).into_iter().map(rename).collect();
    assert!(
        renamed
            .iter()
            .any(|tensor| tensor.name == "medusa_heads.1.0.linear.bias")
    );
    write_folder(&parent.path().join("d"), &to_json(&layout), &renamed, &[]).unwrap();
    let (_, found) = read(&parent.path().join("d")).unwrap();
    assert_eq!(sorted(found), sorted(tensors(&layout)));
}

#[test]
fn the_chain_is_no_longer_than_there_are_heads() {
    let lines = launch_lines(Path::new("runs/d"), &layout(), "org/name", 5);
    assert!(lines[0].text.contains("0.32.0") && lines[0].server.is_none());
    assert_eq!(
        lines[1].text,
        r#"vllm serve org/name --speculative-config '{"method":"medusa","model":"runs/d","num_speculative_tokens":3}'"#
    );
}

/// The configuration of a written folder with keys that other programs use.
fn read_with(more: &[(&str, Value)]) -> Result<(MedusaLayout, Vec<NamedTensor>)> {
    let parent = tempfile::tempdir().unwrap();
    let mut config = to_json(&layout());
    for (key, value) in more {
        config[*key] = value.clone();
    }
    let dir = parent.path().join("d");
    write_folder(&dir, &config, &tensors(&layout()), &[]).unwrap();
    read(&dir)
}

#[test]
fn counts_that_contradict_each_other_are_refused() {
    let agreeing = [
        ("medusa_num_heads", json!(3)),
        ("medusa_num_layers", json!(2)),
    ];
    assert_eq!(read_with(&agreeing).unwrap().0, layout());
    for (key, value) in [
        ("medusa_num_heads", json!(4)),
        (
            "medusa",
            json!({"num_medusa_heads": 2, "num_medusa_layers": 2}),
        ),
        (
            "medusa",
            json!({"num_medusa_heads": 3, "num_medusa_layers": 1}),
        ),
    ] {
        let error = read_with(&[(key, value)]).unwrap_err().to_string();
        assert!(error.contains("expected the same as in"), "{error}");
    }
    // Of a folder that holds the target's configuration too this is the target's.
    let parent = tempfile::tempdir().unwrap();
    let mut config = to_json(&layout());
    let keys = config.as_object_mut().unwrap();
    keys.remove("num_heads");
    keys.insert("num_hidden_layers".into(), json!(32));
    keys.insert(
        "medusa".into(),
        json!({"num_medusa_heads": 3, "num_medusa_layers": 2}),
    );
    let dir = parent.path().join("d");
    write_folder(&dir, &config, &tensors(&layout()), &[]).unwrap();
    assert_eq!(read(&dir).unwrap().0.layers, 2);
}

#[test]
fn a_layout_that_would_be_read_as_another_is_not_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("d");
    for (wrong, field) in [
        (
            MedusaLayout {
                heads: 0,
                ..layout()
            },
            "heads",
        ),
        (
            MedusaLayout {
                draft_vocab_size: 21,
                ..layout()
            },
            "draft_vocab_size",
        ),
        (
            MedusaLayout {
                dtype: DType::I64,
                ..layout()
            },
            "dtype",
        ),
    ] {
        let error = write(&dir, &wrong, &[], &Value::Null).unwrap_err();
        assert!(
            matches!(&error, Error::Layout { field: found, .. } if *found == field),
            "{error}"
        );
    }
    assert!(!dir.exists());
    let error = read_with(&[("quantization_config", json!({}))]).unwrap_err();
    assert!(
        error.to_string().contains("`quantization_config`"),
        "{error}"
    );
}
