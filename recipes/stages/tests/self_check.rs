//! What is computed is checked before the stages of a GPU.

use burn::module::{Module as _, ModuleMapper, Param};
use burn::prelude::Tensor;
use spectrain_checkpoints::ModelFolder;
use spectrain_models::{Capture, Target as _, load_target};
use spectrain_train::{Objective, TrainingTimeTest, TrainingTimeTestConfig};

use super::*;
use crate::stages::self_check::{SelfCheck, Shape};

/// The target of a context in its memory, and what EAGLE-3 captures of it.
fn loaded(context: &StageContext) -> (Transformer, Capture) {
    let model = ModelFolder::open(context.target_folder().unwrap()).unwrap();
    let target = load_target(&model, &context.device, context.target_type.dtype).unwrap();
    let capture = context.recipe.method.capture(target.spec()).unwrap();
    (target, capture)
}

const SHAPE: Shape = Shape {
    rows: 3,
    length: 40,
};

#[test]
fn the_self_check_passes_on_a_device_that_computes_as_the_cpu() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let objective = || {
            Ok(<TrainingTimeTest as Objective<Eagle3>>::new(
                &TrainingTimeTestConfig::default(),
            )?)
        };
        for dtype in [DType::F32, DType::BF16] {
            let context = StageContext {
                target_type: dtype.into(),
                device: context.device.clone(),
                device_name: "cpu".into(),
                array: Default::default(),
                ..*context
            };
            let (target, capture) = loaded(&context);
            let check = SelfCheck::new(&context, &target, &capture, SHAPE).unwrap();
            check.target().unwrap();
            let vocabulary = DraftVocabulary::full(target.spec().vocab);
            let config = Eagle3Config::default();
            check
                .step::<Eagle3, TrainingTimeTest>(&config, &objective, &vocabulary)
                .unwrap();
        }
    });
}

/// Multiplies the parameter of this name.
struct Fault(Vec<String>, &'static str);

impl ModuleMapper for Fault {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.join(".") == self.1 {
            true => param.map(|weight| weight * 1.2),
            false => param,
        }
    }
}

#[test]
fn the_self_check_names_what_is_computed_wrongly() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let (target, capture) = loaded(context);
        for (fault, told) in [
            (
                "layers.1.mlp.up_proj.weight",
                "`model.layers.1.mlp.up_proj.weight`",
            ),
            (
                "layers.3.self_attn.o_proj.weight",
                "`model.layers.3.self_attn.o_proj.weight`",
            ),
            ("layers.2.input_layernorm.weight", "hidden states"),
            ("norm.weight", "the last hidden states"),
            ("embed_tokens.weight", "hidden states"),
        ] {
            let wrong = target.clone().map(&mut Fault(Vec::new(), fault));
            let check = SelfCheck::new(context, &wrong, &capture, SHAPE).unwrap();
            let found = check.target().unwrap_err().to_string();
            assert!(
                found.contains(told) && found.contains("cpu computes wrongly"),
                "{fault}: {found}"
            );
        }
    });
}

#[test]
fn stages_on_a_gpu_are_checked_first() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let gpu = |context: &StageContext, stage: &str| {
            // What tells a stage that it is on a GPU is the name; the device is the CPU.
            let context = StageContext {
                device_name: "cuda:0".into(),
                device: context.device.clone(),
                array: Default::default(),
                ..*context
            };
            run(&context, &[stage.to_owned()]).unwrap();
        };
        run(context, &["export".to_owned()]).unwrap();
        gpu(context, "evaluate");
        let few = [
            "features.mode=stored",
            "name=stored",
            "train.steps=2",
            "train.warmup_steps=1",
            "train.validate_every=2",
        ];
        let changed = recipe(root.path(), &few);
        with_recipe(root.path(), &changed, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            gpu(context, "features");
            gpu(context, "train");
        });
    });
}
