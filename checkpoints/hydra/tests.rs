use super::*;

pub(crate) fn layout(prefix: bool) -> HydraLayout {
    HydraLayout {
        hidden_size: 8,
        vocab_size: 20,
        draft_vocab_size: if prefix { 11 } else { 20 },
        heads: 3,
        layers: 2,
        shared_head: false,
        prefix: prefix.then(|| PrefixLayout {
            intermediate_size: 10,
            heads: 4,
            kv_heads: 2,
            head_dim: 6,
            rms_norm_eps: 1e-5,
            max_position_embeddings: 4096,
            rope: Rope {
                rope_theta: 500_000.0,
                scaling: Some(json!({"rope_type": "linear", "factor": 2.0})),
            },
        }),
        dtype: DType::F32,
    }
}

pub(crate) fn tensors(layout: &HydraLayout) -> Vec<NamedTensor> {
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

#[test]
fn what_is_written_is_read_back() {
    let parent = tempfile::tempdir().unwrap();
    for (name, layout) in [("plain", layout(false)), ("prefix", layout(true))] {
        let dir = parent.path().join(name);
        write(
            &dir,
            &layout,
            &tensors(&layout),
            &json!({"recipe": "hydra"}),
        )
        .unwrap();
        let (found, mut read_tensors) = read(&dir).unwrap();
        assert_eq!(found, layout);
        let mut written = tensors(&layout);
        for tensors in [&mut read_tensors, &mut written] {
            tensors.sort_by(|a, b| a.name.cmp(&b.name));
        }
        assert_eq!(read_tensors, written);
    }
}

#[test]
fn every_tensor_must_be_there_and_known() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("d");
    let layout = layout(true);
    for left_out in 0..tensors(&layout).len() {
        let mut fewer = tensors(&layout);
        let name = fewer.remove(left_out).name;
        let error = write(&dir, &layout, &fewer, &Value::Null).unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
    }
    let mut more = tensors(&layout);
    more.push(NamedTensor::from_f32("extra", [1], vec![0.0]));
    let error = write(&dir, &layout, &more, &Value::Null).unwrap_err();
    assert!(error.to_string().contains("`extra`"), "{error}");
    assert!(!dir.exists());
}

#[test]
fn engines_cannot_take_the_folder_for_one_of_eagle3() {
    let config = to_json(&layout(true));
    assert!(config.get("draft_vocab_size").is_none(), "{config}");
}

#[test]
fn a_layout_that_would_be_read_as_another_is_not_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("d");
    let with_prefix = |change: fn(&mut PrefixLayout)| {
        let mut layout = layout(true);
        layout.prefix.iter_mut().for_each(change);
        layout
    };
    for (wrong, field) in [
        (
            HydraLayout {
                heads: 0,
                ..layout(false)
            },
            "heads",
        ),
        (
            HydraLayout {
                draft_vocab_size: 21,
                ..layout(false)
            },
            "draft_vocab_size",
        ),
        (with_prefix(|prefix| prefix.kv_heads = 3), "kv_heads"),
        (
            with_prefix(|prefix| prefix.rope.scaling = Some(json!({"factor": 2.0}))),
            "rope.scaling",
        ),
    ] {
        let error = write(&dir, &wrong, &[], &Value::Null).unwrap_err();
        assert!(
            matches!(&error, crate::Error::Layout { field: found, .. } if *found == field),
            "{error}"
        );
    }
    assert!(!dir.exists());
}

#[test]
fn a_folder_with_numbers_that_no_layer_has_is_not_read() {
    for (key, value) in [
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(-1)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(5)),
        ("quantization_config", json!({})),
    ] {
        let parent = tempfile::tempdir().unwrap();
        let mut config = to_json(&layout(true));
        config[key] = value;
        let dir = parent.path().join("d");
        crate::write_folder(&dir, &config, &tensors(&layout(true)), &[]).unwrap();
        let error = read(&dir).unwrap_err().to_string();
        assert!(error.contains(&format!("key `{key}`")), "{error}");
    }
}
