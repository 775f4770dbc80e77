//! What becomes of settings that several trainers have.

use std::path::Path;

use serde_json::{Value, json};
use spectrain_checkpoints::absent;
use spectrain_data::held_out::LARGEST_SHARE;
use spectrain_data::presets::Preset;
use spectrain_models::TargetSpec;

use super::rows::{Asked, Made};
use super::settings::{NAME, PRESET, TRAIN};

/// What PyTorch multiplies Muon's rate with (`match_rms_adamw`): this times the root of a matrix's longer side, where Muon's author, and
/// so `train.matrix_learning_rate`, take the root of outputs by inputs where there are more outputs. The two differ by this
/// times the root of a matrix's inputs.
const MATCHED: f64 = 0.2;

/// What is said of settings that share one drafter or target among devices.
pub(super) const NOT_SHARED: &str = "spectrain has no tensor or sequence parallelism and no FSDP; serve a target that does not fit on one GPU with vLLM \
     (`features.mode = \"served\"`)";

/// What is said of settings of trackers.
pub(super) const TRACKED: &str = "curves are written for TensorBoard; with a table `[track]` they go to a tracker as well: `wandb = true`, or the address \
     of an `mlflow` or `trackio` server; `experiment` names the project";

/// What layers see: blocks are causal in those that slide, and in no others.
pub(super) fn layer_types(asked: &Asked) -> Made {
    let types = match &asked.value {
        Value::Array(types) => &types[..],
        Value::Null => &[],
        _ => return Made::expected("the types of all layers"),
    };
    let full = (0..types.len()).filter(|&layer| types[layer] != "sliding_attention");
    let full: Vec<usize> = full.collect();
    if full.len() == types.len() {
        return Made::nothing();
    }
    let Some(width) = asked.count("draft.sliding_window") else {
        return Made::note("set `drafter.window`, how many positions back the sliding layers see");
    };
    let mut made = Made::keys([
        ("drafter.window", json!(width)),
        ("drafter.causal", json!(true)),
    ]);
    if !full.is_empty() {
        made.keys.push(("drafter.full_layers", json!(full)));
        made.keys
            .push(("drafter.full_layers_see_block", json!(true)));
    }
    made
}

/// The divergence that libraries call by these names; a table with one name and any weight is that name, one with several their
/// sum.
pub(super) fn divergence(value: &Value) -> Option<Value> {
    if let Value::Object(table) = value {
        if let [only] = &*table.keys().collect::<Vec<_>>() {
            return divergence(&json!(only));
        }
        let mut factors = serde_json::Map::new();
        for (name, factor) in table {
            let key = match divergence(&json!(name))? {
                Value::String(plain) => plain,
                // Its parameter is that of a sum's.
                _ => name.clone(),
            };
            factors.insert(key, json!(factor.as_f64()?));
        }
        return (!factors.is_empty()).then(|| json!({ "sum": factors }));
    }
    let found = match value.as_str()? {
        "kl" | "kl_div" => json!("kl"),
        "rkl" => json!("reverse_kl"),
        "jsd" => json!({"jsd": 0.5}),
        same @ ("ce" | "tv" | "nla" | "lk_hybrid") => json!(same),
        _ => return None,
    };
    Some(found)
}

/// A share or a ratio without what floating-point arithmetic leaves behind it.
pub(super) fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

/// A learning rate or a decay in three digits, which are more than anybody sweeps.
pub(crate) fn rounded_rate(rate: f64) -> f64 {
    format!("{rate:.2e}").parse().unwrap_or(rate)
}

/// Muon's rate for matrices. With PyTorch's `match_rms_adamw` it depends on the width; `is_original` says that it does not.
pub(super) fn matrix_rate(rate: f64, is_original: bool, target: Option<TargetSpec>) -> Made {
    const KEY: &str = "train.matrix_learning_rate";
    if is_original {
        return Made::key(KEY, rate);
    }
    match target {
        Some(spec) => Made::key(KEY, rounded_rate(rate * matched(&spec))),
        None => Made::key(KEY, rate).with_note(
            "the target's sizes are not known here: multiply `train.matrix_learning_rate` by 0.2 √width of the target",
        ),
    }
}

/// Muon's weight decay. Weights shrink by `rate · decay`, of which PyTorch takes the rate before `match_rms_adamw` multiplies it, so
/// here the decay is divided by as much.
pub(super) fn matrix_decay(decay: f64, is_original: bool, target: Option<TargetSpec>) -> Made {
    const KEY: &str = "train.weight_decay";
    if is_original || decay == 0.0 {
        return Made::key(KEY, decay);
    }
    match target {
        Some(spec) => Made::key(KEY, rounded_rate(decay / matched(&spec))),
        None => Made::key(KEY, decay).with_note(
            "the target's sizes are not known here: divide `train.weight_decay` by 0.2 √width of the target",
        ),
    }
}

/// What `match_rms_adamw` multiplies rates with for a target.
fn matched(target: &TargetSpec) -> f64 {
    MATCHED * (target.d_model as f64).sqrt()
}

/// What is said where another trainer's drafter learns from the text's tokens and ours from the target's distributions.
pub(super) const BY_TEXT: &str = "there the loss is the cross-entropy with the text's tokens; here it is the divergence from the target's distributions \
     (`objective.divergence`), of which `\"ce\"` is by the likeliest token";

/// The decay that `lk_hybrid` has by its name alone: the paper's.
const LK_DECAY: f64 = 3.0;

/// A loss that weighs KL with `scale · exp(-decay · α)`.
pub(super) fn lk_hybrid(scale: Option<f64>, decay: Option<f64>) -> Made {
    let (scale, decay) = (scale.unwrap_or(1.0), decay.unwrap_or(1.0));
    let own = if decay > 0.0 { decay } else { LK_DECAY };
    let divergence = if own == LK_DECAY {
        json!("lk_hybrid")
    } else {
        json!({ "lk_hybrid": own })
    };
    let made = Made::key("objective.divergence", divergence);
    if scale == 1.0 && own == decay {
        return made;
    }
    made.with_note(format!(
        "`lk_hybrid` weighs KL with exp(−{own} α); there it is {scale} · exp(−{decay} · α), with the mean α of all positions"
    ))
}

/// A loss on acceptance whose target distribution is the text's token alone. Its kind of this name is the cross-entropy.
pub(super) fn lk_of_labels(asked: &Asked, cross_entropy: &str) -> Made {
    match asked.value.as_str() {
        Some(kind) if kind == cross_entropy => Made::nothing(),
        None if asked.value.is_null() => Made::nothing(),
        _ => Made::note(
            "the loss is the cross-entropy with the text; `objective.teacher_weight` with `divergence = \"lk_hybrid\"` or `\"tv\"` is by \
             the target's distribution",
        ),
    }
}

/// What is said where another trainer's D-PACE goes by the text's token beside a loss by the target's distributions.
pub(super) const PACED_BY_TEXT: &str = "there D-PACE takes a slot's chance from the drafter's probability of the text's token; here, where the target's \
     distributions judge, it is the acceptance rate, Σ min(p, q)";

/// What is said of schedules that there are none of.
pub(super) const SCHEDULES: &str =
    "schedules are `linear`, `cosine`, `constant` and `wsd`; set `train.schedule`";

/// A number of which one value is possible.
pub(super) fn only(asked: &Asked, number: f64, why: &str) -> Made {
    match asked.value.as_f64() {
        Some(given) if given == number => Made::nothing(),
        _ => Made::note(why),
    }
}

/// A setting that has to be true.
pub(super) fn only_true(asked: &Asked, why: &str) -> Made {
    match asked.value {
        Value::Bool(false) => Made::note(why),
        _ => Made::nothing(),
    }
}

/// A setting that has to be false.
pub(super) fn only_false(asked: &Asked, why: &str) -> Made {
    match asked.value {
        Value::Bool(true) => Made::note(why),
        _ => Made::nothing(),
    }
}

const CAPTURED: &str = "drafter.captured_layers";

/// What `given_or_as_many` makes.
pub(super) const AS_MANY: &str = "`drafter.captured_layers`; without it as many of the target's n layers as the drafter has, evenly from 1 to n − 3, and of one layer n/2";

/// The layers that a block drafter reads: those given, or as many as it has `layers` itself.
pub(super) fn given_or_as_many(asked: &Asked, layers: Option<u64>) -> Made {
    match &asked.value {
        Value::Null => as_many_layers(asked, layers),
        given => Made::key(CAPTURED, given.clone()),
    }
}

/// As many layers as a block drafter has itself. Five are what spectrain takes.
pub(super) fn as_many_layers(asked: &Asked, layers: Option<u64>) -> Made {
    let (target, count) = (asked.sizes(), layers.unwrap_or_default() as usize);
    let ids = match (target.map(|spec| spec.layers), count) {
        (_, 0 | 5) => return Made::nothing(),
        (None, _) => {
            return Made::note(
                "the drafter reads as many of the target's n layers as it has itself, evenly from 1 to n − 3 (of one layer n/2); set \
                 `drafter.captured_layers` (the target's sizes are not known here)",
            );
        }
        (Some(of), 1) => vec![of / 2],
        (Some(of), count) => evenly(1, of.saturating_sub(3), count),
    };
    let ascends = ids.windows(2).all(|pair| pair[0] < pair[1]);
    if ascends {
        Made::key(CAPTURED, json!(ids))
    } else {
        Made::nothing()
    }
}

/// So many layers, evenly from one to another, as Python rounds; of one the last.
pub(super) fn evenly(first: usize, last: usize, count: usize) -> Vec<usize> {
    let count = count.clamp(1, last.max(1));
    if count == 1 {
        return vec![last];
    }
    let step = (last as f64 - first as f64) / (count - 1) as f64;
    let id = |index: usize| (first as f64 + index as f64 * step).round_ties_even() as usize;
    (0..count).map(id).collect()
}

/// Processes that read batches of their own, where so many share each.
pub(super) fn batches_apart(processes: Option<u64>, sharing: Option<u64>) -> Option<u64> {
    let (processes, sharing) = (processes?, sharing.unwrap_or(1).max(1));
    match processes.is_multiple_of(sharing) {
        true => Some(processes / sharing),
        // One process is what is assumed where no launcher says more.
        false if processes == 1 => Some(1),
        false => None,
    }
}

/// What `falling_weights` makes.
pub(super) const FALLING: &str = "`objective.decay_slots` with `slot_weights = \"exponential\"`; without it, or where it is 0, the weights are `uniform`";

/// Weights of a block's slots that fall by this setting, or that are all the same where it is 0 or not given.
pub(super) fn falling_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    match asked.value.as_f64() {
        Some(gamma) if gamma > 0.0 => Made::keys([
            (KEY, json!("exponential")),
            ("objective.decay_slots", json!(gamma)),
        ]),
        None if !asked.value.is_null() => Made::expected("a number"),
        _ => Made::key(KEY, "uniform"),
    }
}

/// Rows of the length that was given, and `rows` of them in a batch.
pub(super) fn rows_of(asked: &Asked, rows: u64) -> Made {
    let length = asked.whole();
    match length.and_then(|length| Some((length, length.checked_mul(rows)?))) {
        Some((length, tokens)) => Made::keys([
            ("data.max_length", json!(length)),
            ("train.batch_tokens", json!(tokens)),
        ]),
        None => Made::expected("a number of tokens"),
    }
}

/// The batches of one step, on all devices together: those of each of the trainer's processes.
pub(super) fn accumulate(batches: u64, processes: Option<u64>) -> Made {
    let product = processes.and_then(|processes| batches.checked_mul(processes));
    let (Some(processes), Some(product)) = (processes, product) else {
        return Made::note(
            "the number of processes is not known: `train.gradient_accumulation` is the number of batches in a step, those of all \
             devices together",
        );
    };
    let mut made = match product {
        1 => return Made::nothing(),
        several => Made::key("train.gradient_accumulation", several),
    };
    if processes == 1 {
        return made;
    }
    made.processes = Some(processes);
    made.with_note(format!(
        "the batches of {processes} processes are one step; `spectrain recipe --devices cuda:0,cuda:1,…` shares them among as many devices"
    ))
}

/// A number of steps, which goes before a number of epochs unless it is below 0.
pub(super) fn steps_of(asked: &Asked) -> Made {
    match asked.whole() {
        Some(steps) => Made::keys([("train.steps", json!(steps)), ("train.epochs", Value::Null)]),
        None if asked.value.is_null() => Made::nothing(),
        None if asked.value.as_f64().is_some_and(|steps| steps < 0.0) => Made::nothing(),
        None => Made::expected("a number of steps"),
    }
}

/// A warm-up over a share of the steps that the schedule is made for, which may be others than those that are trained.
pub(super) fn warm_up(share: f64, horizon: Option<u64>) -> Made {
    match horizon {
        Some(steps) => Made::key("train.warmup_steps", (share * steps as f64) as u64),
        None => Made::key("train.warmup_ratio", share),
    }
}

/// What is held out where a share is trained on.
pub(super) fn held_out(asked: &Asked) -> Made {
    let share = asked.value.as_f64().map_or(0.0, |trained| 1.0 - trained);
    let share = rounded(share);
    if share > 0.0 && share <= LARGEST_SHARE {
        Made::key("data.held_out", share)
    } else {
        Made::note(format!(
            "at most {LARGEST_SHARE} of the prompts can be held out; `data.eval` takes other conversations"
        ))
    }
}

/// A number type of the target.
pub(super) fn dtype_of(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some("bfloat16") => Made::key("target.dtype", "bf16"),
        Some("float32") => Made::key("target.dtype", "f32"),
        None if asked.value.is_null() => Made::nothing(),
        _ => Made::note("the target computes in bf16 or f32"),
    }
}

/// Layers whose inputs are read, as those whose outputs are.
pub(super) fn layers_before(asked: &Asked) -> Made {
    // A flag with one number is that number.
    let layers = match &asked.value {
        Value::Array(layers) => &layers[..],
        Value::Null => &[],
        one => std::slice::from_ref(one),
    };
    let before: Option<Vec<u64>> = layers
        .iter()
        .map(|layer| layer.as_u64().and_then(|layer| layer.checked_sub(1)))
        .collect();
    match before {
        Some(before) if !before.is_empty() => Made::key("drafter.captured_layers", before),
        Some(_) => Made::nothing(),
        None => Made::expected("numbers of layers from 1"),
    }
}

/// Conversations: the name of a dataset that is known here, or a path; or several of these.
pub(super) fn conversations(asked: &Asked) -> Made {
    sources(asked, |text| {
        Ok(match Preset::find(text) {
            Ok(_) => json!({ "preset": text }),
            Err(_) => json!(text),
        })
    })
}

/// Conversations by the names that a trainer has for them, as `data.train` has them: a path, an address or `{ preset = … }`.
/// What has no such name is told.
pub(super) fn sources(asked: &Asked, named: impl Fn(&str) -> Result<Value, String>) -> Made {
    let given = match &asked.value {
        Value::Null => return Made::nothing(),
        Value::String(text) if text.is_empty() => return Made::nothing(),
        Value::Array(several) => several.clone(),
        one => vec![one.clone()],
    };
    let mut found = Vec::new();
    let mut notes = Vec::new();
    for source in &given {
        // What a name with digits alone is.
        let text = source.as_str().map_or(source.to_string(), str::to_owned);
        match named(&text) {
            Ok(source) => found.push(source),
            Err(why) => notes.push(why),
        }
    }
    let mut made = match &found[..] {
        [] => Made::nothing(),
        [one] => match one.get("preset") {
            Some(preset) => Made::key(PRESET, preset.clone()),
            None => Made::key(TRAIN, one.clone()),
        },
        _ => Made::key(TRAIN, found),
    };
    if !notes.is_empty() {
        made = made.with_note(notes.join("; "));
    }
    made
}

/// A run's name, where it can be a folder's.
pub(super) fn name(asked: &Asked) -> Made {
    let name = match &asked.value {
        Value::Null => return Made::nothing(),
        Value::String(name) => name.clone(),
        // One of digits alone.
        Value::Number(digits) if digits.is_u64() => digits.to_string(),
        _ => return Made::expected("a name"),
    };
    match &*name {
        "" => Made::nothing(),
        path if path.contains(['/', '\\']) => {
            Made::expected("a name without `/` and `\\`, as it is a folder's")
        }
        _ => Made::key(NAME, name),
    }
}

/// A number, where it is above 0.
pub(super) fn positive(asked: &Asked, key: &'static str) -> Made {
    match asked.value.as_f64() {
        Some(number) if number > 0.0 => Made::key(key, asked.value.clone()),
        None if !asked.value.is_null() => Made::expected("a number"),
        _ => Made::nothing(),
    }
}

/// What `decay` makes.
pub(super) const DECAY: &str = "`objective.decay`; 1 where it is above 1";

/// The weight of a draft step as a share of that of the step before.
pub(super) fn decay(asked: &Asked) -> Made {
    match asked.value.as_f64() {
        Some(share) => decay_by(share),
        None if asked.value.is_null() => Made::nothing(),
        None => Made::expected("a number"),
    }
}

/// The same of a share that is known.
pub(super) fn decay_by(share: f64) -> Made {
    const KEY: &str = "objective.decay";
    if share > 1.0 {
        return Made::key(KEY, 1.0).with_note(
            "here no step counts more than the one before; with `objective.decay = 1` all count the same",
        );
    }
    Made::key(KEY, share)
}

/// A number of layers, for drafters that have one.
pub(super) fn one_layer(layers: &Value) -> Made {
    match layers.as_u64() {
        Some(1) => Made::nothing(),
        _ => Made::note("the drafter has one layer here, as in the paper"),
    }
}

/// What is said of the weight of a sum of differences.
pub(super) const BY_L1: &str = "`objective.teacher_weight`, twice this, with `divergence = \"tv\"`, which is half the sum of the differences";

/// The weight of `Σ |p - q|`, DSpark's second term: the total variation is half of that.
pub(super) fn by_total_variation(asked: &Asked) -> Made {
    let weight = asked.value.as_f64().unwrap_or_default();
    Made::keys([
        ("objective.teacher_weight", json!(2.0 * weight)),
        ("objective.divergence", json!("tv")),
    ])
}

/// A dataset of the hub where a text is no path here and looks like one's id; else the path that it is.
pub(super) fn hub_or_path(text: &str, split: Option<&str>) -> String {
    const FILES: [&str; 3] = [".json", ".jsonl", ".parquet"];
    let parts: Vec<&str> = text.split('/').collect();
    let is_id = parts.len() == 2
        && parts
            .iter()
            .all(|part| !part.is_empty() && !part.starts_with('.'))
        && !FILES.iter().any(|end| text.ends_with(end))
        && !Path::new(text).exists();
    match split {
        _ if !is_id => text.to_owned(),
        Some(split) => format!("hf://{text}:{split}"),
        None => format!("hf://{text}"),
    }
}

/// What becomes of the width of a drafter's heads.
pub(super) const WIDTH_OF_HEADS: &str = "`drafter.d_head`, where it is not the target's";

/// See [`WIDTH_OF_HEADS`].
pub(super) fn head_width(asked: &Asked) -> Made {
    let of_target = asked.sizes().map(|spec| spec.d_head as u64);
    match asked.whole() {
        Some(width) if of_target == Some(width) => Made::nothing(),
        _ if asked.value.is_null() => Made::nothing(),
        _ => Made::key("drafter.d_head", asked.value.clone()),
    }
}

/// What becomes of the width of heads in a drafter's file.
pub(super) const WIDTH_IN_FILE: &str = "`drafter.d_head`, where it is not the target's; a file without it means the width that layers of its kind have, or \
     `hidden_size` by `num_attention_heads`";

/// See [`WIDTH_IN_FILE`]. The keys of the file have `prefix` before their names. The trainer makes layers of `model_type` of it, or, where
/// it goes by the file, those that the file names.
pub(super) fn head_width_in_file(asked: &Asked, prefix: &str, model_type: Option<&str>) -> Made {
    let settings = &asked.given.settings;
    let is_read = settings.keys().any(|key| key.starts_with(prefix));
    if !asked.value.is_null() || !is_read {
        return head_width(asked);
    }
    let of_file = |name: &str| settings.get(&format!("{prefix}{name}"));
    let size = |name: &str| of_file(name)?.as_u64();
    let shared_out = || {
        let (width, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        (heads > 0 && width.is_multiple_of(heads)).then(|| width / heads)
    };
    let model_type = model_type.or_else(|| of_file("model_type")?.as_str());
    let of_type = absent::head_dim(&json!({ "model_type": model_type }));
    let meant = of_type.map(|width| width as u64).or_else(shared_out);
    head_width(&Asked {
        value: json!(meant),
        ..*asked
    })
}

/// A file with the sizes of a drafter, whose settings are read with `prefix` before their names; `keys` are what they become.
pub(super) fn sizes_file(asked: &Asked, prefix: &str, keys: &str) -> Made {
    let mut settings = asked.given.settings.keys();
    let is_read = settings.any(|key| key.starts_with(prefix));
    match asked.value.as_str() {
        Some(file) if !file.is_empty() && !is_read => Made::note(format!(
            "the file is not here; give the sizes in it as keys of `[drafter]`: {keys}"
        )),
        None if !asked.value.is_null() => Made::expected("a file"),
        _ => Made::nothing(),
    }
}

/// The address of a server without the path of its OpenAI protocol.
pub(super) fn base_of(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    let url = url.trim_end_matches("/chat/completions");
    url.trim_end_matches("/v1")
}

/// The address of a server that hands out hidden states.
pub(super) fn server(asked: &Asked) -> Made {
    let url = match &asked.value {
        Value::Null => return Made::nothing(),
        Value::String(url) => url,
        _ => return Made::expected("the address of a server"),
    };
    Made::keys([
        ("target.server", json!([base_of(url)])),
        ("features.mode", json!("streamed")),
    ])
    .with_note(
        "set `target.server_folder` to the folder into which the server writes hidden states, by its path on the server, and \
         `target.local_folder` to its path on this machine where that is another; where this machine does not have it, start \
         `spectrain relay` beside the server, and name its address in `target.server`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_address_without_a_path() {
        for url in [
            "http://a:1",
            "http://a:1/",
            "http://a:1/v1/",
            "http://a:1/v1/chat/completions",
        ] {
            assert_eq!(base_of(url), "http://a:1", "{url}");
        }
        assert_eq!(base_of("https://a/b/v1"), "https://a/b");
    }

    #[test]
    fn what_is_no_path_may_be_a_dataset_of_the_hub() {
        for (text, split, expected) in [
            ("org/name", None, "hf://org/name"),
            ("org/name", Some("train_sft"), "hf://org/name:train_sft"),
            ("data/train.jsonl", Some("train"), "data/train.jsonl"),
            ("./data", None, "./data"),
            ("../data/chats", None, "../data/chats"),
            ("/data/chats", None, "/data/chats"),
        ] {
            assert_eq!(hub_or_path(text, split), expected, "{text}");
        }
    }
}
