//! Value and gradient of every divergence, against PyTorch's autograd in f64.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use spectrain_models::weights::host_f32;
use spectrain_train::{Divergence, TeacherRows};

use crate::golden::{assert_close, json};

fn rows(value: &serde_json::Value) -> Vec<f32> {
    match value {
        serde_json::Value::Array(values) => values.iter().flat_map(rows).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

#[test]
fn divergences_equal_pytorch() {
    let device = Device::flex();
    let golden = json("divergences.json");
    let logits = |key: &str| {
        Tensor::<1>::from_floats(rows(&golden[key]).as_slice(), &device).reshape([3, 7])
    };
    let cases = [
        ("fkl", Divergence::Kl),
        ("rkl", Divergence::ReverseKl),
        ("jsd_0.5", Divergence::Jsd(0.5)),
        ("jsd_0.1", Divergence::Jsd(0.1)),
        ("ce", Divergence::Ce),
        ("tv", Divergence::Tv),
        ("nla", Divergence::Nla),
        ("lk_hybrid", Divergence::LkHybrid),
        ("topk_ce_3", Divergence::TopK(3)),
    ];
    for (name, divergence) in cases {
        let teacher = TeacherRows {
            log_p: log_softmax(logits("target_logits"), 1),
            covered: None,
        };
        let judged = divergence.judge(logits("draft_logits"), &teacher);
        let expected = &golden["divergences"][name];
        assert_close(
            name,
            &host_f32(judged.value),
            &rows(&expected["value"]),
            1e-5,
        );
        assert_close(
            name,
            &host_f32(judged.gradient),
            &rows(&expected["gradient"]),
            1e-5,
        );
    }
}
