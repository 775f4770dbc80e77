//! A server that hands out the hidden states of a target as vLLM's connector does, and fails as planned.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_safetensors};
use spectrain_eval::{DecodeSettings, Decoder};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Capture, DraftShape, Features, Layout, Sampling, Target as _, Transformer, argmax, load_target,
};

use crate::http::{Request, respond};

/// What is wrong with the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// They are all 0.
    Zeros,
    /// One of them is no number.
    NoNumber,
    /// The last one went through the final norm twice.
    NormedTwice,
    /// The last one is of the layer before the last.
    OneLayerEarly,
    /// The first one is of a later layer.
    OtherLayer,
    /// The first and the last one stand in each other's place.
    Permuted,
    /// They are of other tokens.
    OtherTokens,
    /// There is one slot fewer.
    OneSlotLess,
    /// The file is said to be somewhere else.
    Elsewhere,
    /// There is no file.
    NoFile,
    /// One of them is all 0, but not in the first files.
    ZeroLater,
    /// Some files are not written, and some not whole: there is no room for them.
    Unwritten,
}

/// How a server serves.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Layers that have run, as vLLM counts them.
    pub ids: Vec<usize>,
    pub max_model_len: usize,
    pub wrong: Option<Wrong>,
    /// Whether the last state is normed already.
    pub normed: bool,
    /// The connection ends at every request of this number and its multiples.
    pub hangs_up_at: Option<usize>,
    /// No request is answered any more after so many.
    pub dies_after: Option<usize>,
    /// Nobody is there for this long after so many requests.
    pub away_after: Option<(usize, Duration)>,
    /// What is wrong with the states once somebody is there again.
    pub wrong_then: Option<Wrong>,
    /// Nobody is there for this long at the start.
    pub late: Duration,
    /// The pause before an answer.
    pub pause: Duration,
}

impl Serving {
    pub fn of(ids: &[usize]) -> Self {
        Self {
            ids: ids.to_vec(),
            max_model_len: 512,
            wrong: None,
            normed: false,
            hangs_up_at: None,
            dies_after: None,
            away_after: None,
            wrong_then: None,
            late: Duration::ZERO,
            pause: Duration::ZERO,
        }
    }
}

#[derive(Default)]
struct Memory {
    requests: usize,
    was_away: bool,
    under_way: usize,
    most_under_way: usize,
    /// The most files that lay in the folder.
    most_files: usize,
}

struct Shared {
    target: Transformer,
    folder: PathBuf,
    serving: Serving,
    /// Its port.
    tag: u16,
    memory: Mutex<Memory>,
}

pub struct StateServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl StateServer {
    /// Of the target in a folder, whose states it writes into another.
    pub fn start(target: &Path, folder: &Path, serving: Serving) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let model = ModelFolder::open(target).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            tag: address.port(),
            target: load_target(&model, &test_device(), DType::F32).unwrap(),
            folder: folder.to_owned(),
            serving,
            memory: Mutex::default(),
        });
        let (of_thread, late) = (shared.clone(), shared.serving.late);
        let listener = late.is_zero().then_some(listener);
        std::thread::spawn(move || {
            std::thread::sleep(late);
            let listener = listener.unwrap_or_else(|| TcpListener::bind(address).unwrap());
            listen(&of_thread, listener);
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The most requests and the most files at a time.
    pub fn most(&self) -> [usize; 2] {
        let memory = self.shared.memory();
        [memory.most_under_way, memory.most_files]
    }
}

/// Serves each connection in a thread of its own, but for the time at which nobody is there.
fn listen(shared: &Arc<Shared>, mut listener: TcpListener) {
    let address = listener.local_addr().unwrap();
    loop {
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        if let Some(away) = shared.goes_away() {
            drop((stream, listener));
            std::thread::sleep(away);
            listener = TcpListener::bind(address).unwrap();
            continue;
        }
        let shared = shared.clone();
        std::thread::spawn(move || shared.serve(stream));
    }
}

impl Shared {
    /// For how long nobody is there from now on, where that is so.
    fn goes_away(&self) -> Option<Duration> {
        let (last, away) = self.serving.away_after?;
        let mut memory = self.memory();
        let goes = memory.requests > last && !memory.was_away;
        memory.was_away |= goes;
        goes.then_some(away)
    }

    /// What is wrong with the states now.
    fn wrong(&self) -> Option<Wrong> {
        let was_away = self.memory().was_away;
        let then = self.serving.wrong_then.filter(|_| was_away);
        then.or(self.serving.wrong)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut out = stream;
        loop {
            let request = Request::read(&mut reader)?;
            match request.target.as_str() {
                "/v1/models" => {
                    let model = json!({"id": "served", "owned_by": "vllm", "max_model_len": self.serving.max_model_len});
                    respond(
                        &mut out,
                        "200 OK",
                        "",
                        &json!({"data": [model]}).to_string(),
                    )?;
                }
                "/v1/completions" => {
                    let (number, was_away) = {
                        let mut memory = self.memory();
                        memory.requests += 1;
                        memory.under_way += 1;
                        memory.most_under_way = memory.most_under_way.max(memory.under_way);
                        (memory.requests, memory.was_away)
                    };
                    std::thread::sleep(self.serving.pause);
                    let dies = self.serving.dies_after.is_some_and(|last| number > last);
                    let hangs_up = |every: usize| number.is_multiple_of(every);
                    let away = self.serving.away_after;
                    let leaves = away.is_some_and(|(last, _)| number > last && !was_away);
                    let fails = dies || leaves || self.serving.hangs_up_at.is_some_and(hangs_up);
                    let answer = (!fails).then(|| {
                        self.complete(number, &serde_json::from_slice(&request.body).unwrap())
                    });
                    self.memory().under_way -= 1;
                    respond(&mut out, "200 OK", "", &answer?.to_string())?;
                }
                _ => respond(&mut out, "404 Not Found", "", "{}")?,
            }
        }
    }

    fn complete(&self, number: usize, body: &Value) -> Value {
        let prompt: Vec<u32> = serde_json::from_value(body["prompt"].clone()).unwrap();
        let answer = self.answer(&prompt, body);
        let whole = body["kv_transfer_params"]["include_output_tokens"] == true;
        let mut tokens = prompt.clone();
        if whole {
            tokens.extend(&answer[..answer.len() - 1]);
        }
        // As with engines no two files of a folder have one name, whoever writes it.
        let name = format!("{}-{number}.safetensors", self.tag);
        self.write(&self.folder.join(&name), &tokens, number);
        let path = match self.wrong() {
            Some(Wrong::Elsewhere) => json!("/etc/passwd"),
            Some(Wrong::NoFile) => Value::Null,
            _ => json!(self.folder.join(&name)),
        };
        let mut choice =
            json!({"index": 0, "text": "", "token_ids": answer, "finish_reason": "length"});
        if body["prompt_logprobs"].is_u64() {
            choice["prompt_logprobs"] = self.log_probabilities(&prompt);
        }
        json!({"choices": [choice], "kv_transfer_params": {"hidden_states_path": path}})
    }

    fn answer(&self, prompt: &[u32], body: &Value) -> Vec<u32> {
        let temperature = body["temperature"].as_f64().unwrap();
        let settings = DecodeSettings {
            max_new_tokens: body["max_tokens"].as_u64().unwrap() as usize,
            draft: DraftShape::Chain { length: 0 },
            sampling: if temperature == 0.0 {
                Sampling::GREEDY
            } else {
                Sampling::at(temperature)
            },
            stop: serde_json::from_value(body["stop_token_ids"].clone()).unwrap_or_default(),
            shadow: None,
        };
        let seed = body["seed"].as_u64().unwrap_or_default();
        let capture = Capture::default();
        let mut rng = StdRng::seed_from_u64(seed);
        let decoder = Decoder::new(&self.target, &capture);
        decoder.plain(prompt, &settings, &mut rng).unwrap().tokens
    }

    /// What the target makes of a text.
    fn features(&self, tokens: &[u32], capture: &Capture) -> Features {
        let device = test_device();
        let shape = [1, tokens.len()];
        let layout = Layout::whole(shape, &device);
        let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape(shape);
        self.target.features(ids, &layout, capture)
    }

    /// The states of each slot: `[tokens, d_model]`.
    fn states(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let layers = self.target.spec().layers;
        // vLLM hands out no state twice, in the order of the layers.
        let ids: BTreeSet<usize> = self.serving.ids.iter().copied().collect();
        let mut ids: Vec<usize> = ids.into_iter().collect();
        if let (Some(Wrong::OneLayerEarly), Some(last)) = (self.wrong(), ids.last_mut()) {
            *last -= 1;
        }
        if self.wrong() == Some(Wrong::OtherLayer) {
            ids[0] += 1;
        }
        let layer = |id: &usize| Capture {
            layers: vec![id - 1],
        };
        ids.iter()
            .map(|id| {
                let features = self.features(tokens, &layer(id));
                let norm = self.target.parts().norm;
                let state = match (id == &layers && self.serving.normed, self.wrong()) {
                    (true, _) => features.last,
                    (_, Some(Wrong::NormedTwice)) if id == &layers => norm.forward(features.last),
                    _ => features.captured,
                };
                host_f32(state)
            })
            .collect()
    }

    /// Writes the file behind the answer's back, holding the lock.
    fn write(&self, path: &Path, tokens: &[u32], number: usize) {
        let mut slots = self.states(tokens);
        let d_model = self.target.spec().d_model;
        match self.wrong() {
            Some(Wrong::ZeroLater) if number > 6 => slots[0][..d_model].fill(0.0),
            Some(Wrong::Zeros) => slots.iter_mut().flatten().for_each(|value| *value = 0.0),
            Some(Wrong::Permuted) => {
                let last = slots.len() - 1;
                slots.swap(0, last);
            }
            Some(Wrong::OneSlotLess) => drop(slots.pop()),
            _ => {}
        }
        let row = |token: usize| {
            slots
                .iter()
                .flat_map(move |slot| &slot[token * d_model..(token + 1) * d_model])
        };
        let values: Vec<f32> = (0..tokens.len()).flat_map(row).copied().collect();
        let mut states = NamedTensor::from_f32(
            "hidden_states",
            [tokens.len(), slots.len(), d_model],
            values,
        );
        if self.wrong() == Some(Wrong::NoNumber) {
            states.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        let more = i64::from(self.wrong() == Some(Wrong::OtherTokens));
        let ids = tokens
            .iter()
            .map(|&token| i64::from(token) + more)
            .collect();
        let tensors = [
            states,
            NamedTensor::from_i64("token_ids", [tokens.len()], ids),
        ];
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = File::create(name).unwrap();
        lock.lock().unwrap();
        let path = path.to_owned();
        let fails = (self.wrong() == Some(Wrong::Unwritten)).then_some(number % 7);
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            if fails != Some(3) {
                write_safetensors(&path, &tensors, &BTreeMap::new()).unwrap();
            }
            if fails == Some(5) {
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            drop(lock);
        });
        let files = std::fs::read_dir(&self.folder).unwrap().count() / 2;
        let mut memory = self.memory();
        memory.most_files = memory.most_files.max(files);
        drop(memory);
        drop(writer);
    }

    fn log_probabilities(&self, tokens: &[u32]) -> Value {
        let parts = self.target.parts();
        let last = self.features(tokens, &Capture::default()).last;
        let logits: Tensor<2> = parts.lm_head.forward(last).squeeze_dim(0);
        let vocab = logits.dims()[1];
        let found = host_f32(log_softmax(logits, 1));
        let of_place = |(row, token): (&[f32], &u32)| {
            let best = argmax(row);
            let rank = row
                .iter()
                .filter(|other| **other > row[*token as usize])
                .count()
                + 1;
            let mut place = json!({ (best.to_string()): {"logprob": row[best], "rank": 1} });
            place[token.to_string()] = json!({"logprob": row[*token as usize], "rank": rank});
            place
        };
        let places = found.chunks(vocab).zip(&tokens[1..]).map(of_place);
        std::iter::once(Value::Null).chain(places).collect()
    }
}
