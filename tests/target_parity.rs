//! Every layer's hidden state and the logits of each architecture, against `transformers`.
use std::path::Path;

use burn::prelude::*;
use serde_json::Value;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Layout, LogitRows, Pass, Target, TransformerConfig, chain, load_target,
};

use crate::golden::{assert_close, folders, path, tensors};

const TOLERANCE: f32 = 1e-4;

fn parity(name: &str) {
    let device = test_device();
    let folder = ModelFolder::open(path(&format!("targets/{name}"))).unwrap();
    let target = load_target(&folder, &device, DType::F32).unwrap();
    let golden = tensors(&format!("targets/{name}/golden.safetensors"));
    let spec = target.spec().clone();
    let ids = &golden["input_ids"];
    let [batch, seq] = ids.shape[..] else {
        panic!()
    };
    let ids: Vec<u32> = ids.values.iter().map(|&id| id as u32).collect();
    let tokens = ids.iter().map(|&id| id as i64).collect::<Vec<_>>();
    let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device).reshape([batch, seq]);
    let layout = Layout::whole([batch, seq], &device);
    for layer in 0..spec.layers {
        let capture = Capture {
            layers: vec![layer],
        };
        let features = target.features(tokens.clone(), &layout, &capture);
        let expected = golden[&format!("hidden.{layer}")].f32();
        assert_close(
            &format!("{name} hidden.{layer}"),
            &host_f32(features.captured),
            &expected,
            TOLERANCE,
        );
        assert_close(
            &format!("{name} last"),
            &host_f32(features.last),
            &golden["last"].f32(),
            TOLERANCE,
        );
    }
    // The decoding path, in two passes over a cache.
    let logits = golden["logits"].f32();
    for row in 0..batch {
        let mut caches = Caches::new(spec.layers, 4);
        let row_ids = &ids[row * seq..(row + 1) * seq];
        let mut got = Vec::new();
        for part in [&row_ids[..seq - 5], &row_ids[seq - 5..]] {
            let pass = Pass {
                tokens: part,
                parents: &chain(part.len()),
                logits: LogitRows::All,
            };
            got.extend(host_f32(
                target.decode(pass, &mut caches, &Capture::default()).logits,
            ));
        }
        let expected = &logits[row * seq * spec.vocab..(row + 1) * seq * spec.vocab];
        assert_close(&format!("{name} logits"), &got, expected, TOLERANCE);
    }
}

#[test]
fn every_target_equals_transformers() {
    let names = folders("targets");
    assert!(names.len() >= 11, "{names:?}");
    for name in names {
        parity(&name);
    }
}

#[test]
fn what_is_read_of_every_target_is_read_again_of_what_is_written_of_it() {
    let read = |config: &Value| TransformerConfig::read(config, Path::new("config.json")).unwrap();
    for name in folders("targets") {
        let folder = ModelFolder::open(path(&format!("targets/{name}"))).unwrap();
        let config = read(folder.config());
        assert_eq!(read(&config.to_json().unwrap()), config, "{name}");
    }
}
