//! Answers of a server that speaks the OpenAI protocol.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};
use spectrain_data::Message;
use spectrain_data::conversation::{Exchange, REASONING};
use spectrain_data::regenerate::{Answer, Answers, Failure, Request, TOOL_CALLS};

use super::protocol::{Calls, Completion};
use crate::recipe::tables::TEMPLATE_KEY;
use crate::runtime::server::client::{
    Client, OtherModels, passing, said, shortened, unless_silent,
};
use crate::runtime::server::key::ApiKey;

/// Where the server is and what it is asked.
#[derive(Clone)]
pub struct ServerSettings {
    /// Its address, with or without `/v1`.
    pub url: String,
    /// What the user names its address and its model by, for errors.
    pub named_by: [&'static str; 2],
    /// The model's name; without it, the only one that the server has.
    pub model: Option<String>,
    /// The API key.
    pub key: Option<ApiKey>,
    /// Further keys of the body, such as the temperature.
    pub body: Map<String, Value>,
    /// The seed from which every turn gets its own.
    pub seed: Option<u64>,
    /// The longest a request may take, its answer included.
    pub timeout: Duration,
}

/// The body's keys that say how an answer is written, as far as they are given, and further ones, with these variables of the chat
/// template.
pub fn body(
    [temperature, top_p]: [Option<f64>; 2],
    max_tokens: Option<u32>,
    extra: impl IntoIterator<Item = (String, Value)>,
    template_variables: &Map<String, Value>,
) -> Map<String, Value> {
    let given = [
        ("temperature", temperature.map(Value::from)),
        ("top_p", top_p.map(Value::from)),
        ("max_tokens", max_tokens.map(Value::from)),
    ];
    let given = given.into_iter();
    let given = given.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let mut body: Map<String, Value> = given.chain(extra).collect();
    set_variables(&mut body, template_variables);
    body
}

/// Sets variables of the chat template in a request's body.
fn set_variables(body: &mut Map<String, Value>, variables: &Map<String, Value>) {
    if variables.is_empty() {
        return;
    }
    let all = body.entry(TEMPLATE_KEY).or_insert_with(|| json!({}));
    for (name, value) in variables {
        all[name] = value.clone();
    }
}

/// A server with its model.
pub struct Server {
    client: Client,
    settings: ServerSettings,
    model: String,
}

impl ServerSettings {
    /// The connection to the server.
    pub(super) fn client(&self) -> Result<Client> {
        let key = self.key.clone();
        Client::new(self.named_by[0], &self.url, key, self.timeout)
    }

    /// The name of the model: the one that is given, or the only one that the server has.
    pub(super) fn model(&self, client: &Client) -> Result<String> {
        if let Some(model) = &self.model {
            return Ok(model.clone());
        }
        let [_, by_model] = self.named_by;
        let advice = || {
            let root = client.root();
            format!(
                "cannot learn the name of the model from `{root}/v1/models`; give it with `{by_model}`"
            )
        };
        let found = client.model(None);
        Ok(found.map_err(|cause| unless_silent(cause, advice))?.id)
    }
}

impl Server {
    /// Checks the address and, if no model is named, asks the server which one it has.
    pub fn connect(settings: ServerSettings) -> Result<Self> {
        let client = settings.client()?;
        let model = settings.model(&client)?;
        Ok(Self::of(client, settings, model))
    }

    /// One with this model.
    pub(super) fn of(client: Client, settings: ServerSettings, model: String) -> Self {
        Self {
            client,
            settings,
            model,
        }
    }

    /// The connection to it.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Asks the server whether it has the model, unless the user named it; why it has not.
    ///
    /// # Errors
    /// It does not say.
    pub(super) fn check_model(&self) -> Result<Result<(), String>, Failure> {
        if self.settings.model.is_some() {
            return Ok(Ok(()));
        }
        match self.client.model(Some(&self.model)) {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.is::<OtherModels>() => Ok(Err(error.to_string())),
            Err(error) => Err(passing(format!("{error:#}"))),
        }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The seed from which every turn gets its own.
    pub fn seed(&self) -> Option<u64> {
        self.settings.seed
    }

    /// Further keys of every request's body.
    pub fn body(&self) -> &Map<String, Value> {
        &self.settings.body
    }
}

/// A failure of a request with this body, with what to do where the server does not know the key of the template's variables, or
/// takes no tools.
fn advised(failure: Failure, body: &Value) -> Failure {
    let has = |key: &str| body.get(key).is_some();
    match failure {
        Failure::Lasting { reason } if has("tools") && reason.contains("tool") => {
            let hint = "vLLM takes tools with `--enable-auto-tool-choice --tool-call-parser …`, SGLang with `--tool-call-parser …`, \
                        llama.cpp with `--jinja`; `--tools copy`, in a recipe `regenerate.tools = \"copy\"`, leaves rows with \
                        tools as they are";
            Failure::Lasting {
                reason: format!("{reason}: {hint}"),
            }
        }
        Failure::Lasting { reason } if has(TEMPLATE_KEY) && reason.contains(TEMPLATE_KEY) => {
            let hint = "the server does not take the variables of the chat template, with which the target answers as it is \
                        trained on; vLLM, SGLang and llama.cpp take them";
            Failure::Lasting {
                reason: format!("{reason}: {hint}"),
            }
        }
        other => other,
    }
}

impl Answers for Server {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let mut body = self.settings.body.clone();
        body.insert("model".into(), self.model.as_str().into());
        let Exchange {
            messages,
            tools,
            variables,
        } = request.exchange;
        let has_tools = !tools.is_empty();
        let mut messages = json!(messages);
        if has_tools {
            body.insert("tools".into(), tools.into());
            with_arguments_as_texts(&mut messages);
        }
        if let Some(variables) = variables {
            set_variables(&mut body, variables);
        }
        body.insert("messages".into(), messages);
        body.insert("stream".into(), false.into());
        if let Some(seed) = self.settings.seed {
            // Engines read it as a signed number of 64 bits, or of 32.
            body.insert("seed".into(), (request.seed(seed) >> 33).into());
        }
        let body = Value::Object(body);
        let answer = self.client.post("/v1/chat/completions", &body);
        let answer = answer.map_err(|failure| advised(failure, &body))?;
        read_answer(&answer, has_tools)
    }
}

/// Gives the arguments of calls the form of the protocol, texts; chat templates and the output have them as objects.
fn with_arguments_as_texts(messages: &mut Value) {
    let messages = messages.as_array_mut().into_iter().flatten();
    let calls = messages.filter_map(|message| message.get_mut(TOOL_CALLS)?.as_array_mut());
    let arguments = calls
        .flatten()
        .filter_map(|call| call.get_mut("function")?.get_mut("arguments"));
    for arguments in arguments.filter(|arguments| !arguments.is_string()) {
        *arguments = arguments.to_string().into();
    }
}

/// Calls of tools, as messages have them: their arguments are an object, unless they cannot be read as one.
fn read_calls(calls: Vec<Value>) -> Vec<Value> {
    let read = |call: Value| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::Object(arguments)) => arguments.into(),
                _ => text.as_str().into(),
            },
            Value::Null => json!({}),
            given => given.clone(),
        };
        let mut read = Map::new();
        if let Some(id) = call["id"].as_str() {
            read.insert("id".into(), id.into());
        }
        read.insert("type".into(), "function".into());
        let function = json!({"name": function["name"], "arguments": arguments});
        read.insert("function".into(), function);
        read.into()
    };
    calls.into_iter().map(read).collect()
}

/// The answer in the body of a response, which may call tools where it was given some. What is not one may be so at another try.
fn read_answer(body: &[u8], has_tools: bool) -> Result<Answer, Failure> {
    let read: Completion = serde_json::from_slice(body)
        .map_err(|error| passing(format!("cannot read an answer from the response: {error}")))?;
    let choice = read.choices.0;
    let Some((reply, finish)) =
        choice.and_then(|choice| Some((choice.message?, choice.finish_reason)))
    else {
        let said = said(body);
        return Err(passing(format!(
            "the response has no `choices[0].message`{said}"
        )));
    };
    let truncated = is_cut_off(finish.as_deref(), has_tools)?;
    let calls = reply
        .tool_calls
        .map_or(Ok(Vec::new()), |calls| allowed(calls, has_tools))?;
    let reasoning = [reply.reasoning_content, reply.reasoning];
    let reasoning = reasoning
        .into_iter()
        .flatten()
        .find(|text| !text.is_empty());
    let content = match (reply.content, &reasoning) {
        (Some(content), _) => content,
        // All of it was reasoning, or calls.
        (None, Some(_)) => String::new(),
        (None, None) if !calls.is_empty() => String::new(),
        (None, None) => return Err(passing("`content`: expected a text, found none")),
    };
    let mut message = Message::new("assistant", content);
    if let Some(reasoning) = reasoning {
        message.extra.insert(REASONING.into(), reasoning.into());
    }
    if !calls.is_empty() {
        let calls = read_calls(calls);
        message.extra.insert(TOOL_CALLS.into(), calls.into());
    }
    Ok(Answer {
        message,
        truncated,
        written: None,
    })
}

/// Whether an answer that ended for this reason was cut off.
fn is_cut_off(finish: Option<&str>, has_tools: bool) -> Result<bool, Failure> {
    match finish {
        None | Some("stop") => Ok(false),
        Some("tool_calls") if has_tools => Ok(false),
        Some("length") => Ok(true),
        Some(other) => {
            let found = shortened(other);
            Err(passing(format!(
                "`finish_reason`: expected `stop` or `length`, found `{found}`"
            )))
        }
    }
}

/// The calls of an answer that may have some.
fn allowed(calls: Calls, has_tools: bool) -> Result<Vec<Value>, Failure> {
    let expected = match calls {
        Calls::Few(calls) if has_tools || calls.is_empty() => return Ok(calls),
        _ if has_tools => "few calls of tools",
        _ => "an answer in words",
    };
    Err(passing(format!(
        "expected {expected}, found an answer that calls tools"
    )))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn of(message: Value, finish: Value) -> Result<Answer, Failure> {
        let choice = json!({"index": 0, "message": message, "finish_reason": finish});
        read_answer(json!({ "choices": [choice] }).to_string().as_bytes(), false)
    }

    fn calling(message: Value, finish: &str) -> Result<Answer, Failure> {
        let choice = json!({"message": message, "finish_reason": finish});
        read_answer(json!({ "choices": [choice] }).to_string().as_bytes(), true)
    }

    #[test]
    fn calls_have_arguments_as_objects_here_and_as_texts_in_requests() {
        let call = |arguments: Value| json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        let of = |arguments: Value| {
            let message = json!({"content": null, "tool_calls": call(arguments)});
            calling(message, "tool_calls").unwrap().message
        };
        let read = of(json!("{\"b\": 1, \"a\": [2.50]}"));
        assert_eq!(read.content, "");
        let arguments = json!({"b": 1, "a": [2.5]});
        assert_eq!(read.extra[TOOL_CALLS], call(arguments.clone()));
        assert_eq!(of(json!("")).extra[TOOL_CALLS], call(json!({})));
        for unreadable in ["{\"b\": ", "[1]"] {
            let read = of(json!(unreadable));
            assert_eq!(read.extra[TOOL_CALLS], call(json!(unreadable)));
        }
        let mut sent = json!([read]);
        with_arguments_as_texts(&mut sent);
        let text = json!(arguments.to_string());
        assert_eq!(sent[0][TOOL_CALLS], call(text));
        assert_eq!(
            calling(json!({"content": "a"}), "stop").unwrap().message,
            Message::new("assistant", "a")
        );
        let many = json!({"content": "", "tool_calls": vec![json!({}); 129]});
        assert!(calling(many, "tool_calls").is_err());
    }

    #[test]
    fn an_answer_keeps_its_reasoning_under_one_name() {
        for key in ["reasoning_content", "reasoning"] {
            let message = json!({"role": "assistant", "content": "a", key: "r"});
            let answer = of(message, json!("stop")).unwrap();
            assert_eq!(answer.message.content, "a");
            assert_eq!(answer.message.extra["reasoning_content"], "r");
            assert!(!answer.truncated);
        }
        let cut = of(json!({"content": null, "reasoning": "r"}), json!("length")).unwrap();
        assert!(cut.truncated && cut.message.content.is_empty());
        let plain = of(
            json!({"content": "a", "reasoning_content": null}),
            Value::Null,
        )
        .unwrap();
        assert_eq!(plain.message, Message::new("assistant", "a"));
    }

    #[test]
    fn what_is_no_answer_is_tried_again() {
        let cases = [
            of(json!({"content": null}), json!("stop")),
            of(json!({"content": 3}), json!("stop")),
            of(
                json!({"content": "", "tool_calls": [{}]}),
                json!("tool_calls"),
            ),
            of(json!({"content": "a", "tool_calls": [{}]}), json!("stop")),
            of(json!({"content": "a"}), json!("abort")),
            of(json!("a"), json!("stop")),
            read_answer(b"{\"choices\": []}", false),
            read_answer(b"[1]", false),
            read_answer(b"{\"choices\": [", false),
        ];
        for case in cases {
            assert!(matches!(case, Err(Failure::Passing { .. })), "{case:?}");
        }
    }

    #[test]
    fn of_a_response_only_the_answer_is_taken_in() {
        let beside = vec!["[[],{}]"; 200_000].join(",");
        let body = format!(
            r#"{{"usage":{{"a":[{beside}]}},"choices":[{{"logprobs":{{"content":[{beside}]}},"message":{{"content":"a","more":[{beside}]}},"finish_reason":"stop"}},{{"message":[{beside}]}}]}}"#
        );
        let answer = read_answer(body.as_bytes(), false).unwrap();
        assert_eq!(answer.message, Message::new("assistant", "a"));
        let reason = |body: String| match read_answer(body.as_bytes(), false) {
            Err(Failure::Passing { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        let calls = r#"{"choices":[{"message":{"content":"a","tool_calls":["#;
        assert!(reason(format!("{calls}{beside}]}}}}]}}")).contains("tools"));
        assert!(reason(format!(r#"{{"detail":[{beside}]}}"#)).len() < 1000);
        assert!(reason(r#"{"error":{"type":"x","message":"no"}}"#.to_owned()).ends_with(": no"));
    }

    #[test]
    fn variables_of_the_template_are_sent_beside_those_given_by_hand() {
        let variables = json!({"enable_thinking": false});
        let variables = variables.as_object().unwrap();
        let extra = |given: Value| [(TEMPLATE_KEY.to_owned(), given)];
        let sent = body([None; 2], None, extra(json!({"effort": "low"})), variables);
        let expected = json!({"chat_template_kwargs": {"effort": "low", "enable_thinking": false}});
        assert_eq!(Value::Object(sent), expected);
        let sent = body([None, Some(0.5)], Some(3), Map::new(), &Map::new());
        assert_eq!(Value::Object(sent), json!({"top_p": 0.5, "max_tokens": 3}));
    }

    #[test]
    fn a_server_that_does_not_know_the_key_of_variables_is_told_with_a_hint() {
        let advised = |said: &str, body: Value| {
            let reason = said.to_owned();
            match advised(Failure::Lasting { reason }, &body) {
                Failure::Lasting { reason } => reason,
                other @ Failure::Passing { .. } => panic!("{other:?}"),
            }
        };
        let variables = json!({"chat_template_kwargs": {"enable_thinking": false}});
        let told = |said: &str| advised(said, variables.clone());
        let no_parser = "status 400: \"auto\" tool choice requires --tool-call-parser to be set";
        assert_eq!(told(no_parser), no_parser);
        let with_tools = advised(no_parser, json!({"tools": [{"type": "function"}]}));
        assert!(with_tools.contains("`--tools copy`"), "{with_tools}");
        let unknown = told("status 400: Unknown parameter: 'chat_template_kwargs'");
        assert!(
            unknown.contains("'chat_template_kwargs': the server does not take"),
            "{unknown}"
        );
        assert_eq!(told("status 400: too long"), "status 400: too long");
        let unknown = "status 400: Unknown parameter: 'chat_template_kwargs'";
        assert_eq!(advised(unknown, json!({})), unknown);
    }

    /// What is said of a server without a model that is named.
    fn refused(url: String) -> String {
        let connected = Server::connect(ServerSettings {
            url,
            named_by: ["--server", "--model"],
            model: None,
            key: None,
            body: Map::new(),
            seed: None,
            timeout: Duration::from_secs(20),
        });
        format!("{:#}", connected.err().unwrap())
    }

    #[test]
    fn a_server_that_does_not_answer_is_told_from_one_whose_model_is_not_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let told = refused(url.clone());
        assert!(
            told.starts_with(&format!("no server answers at `{url}`: ")),
            "{told}"
        );
        assert!(!told.contains("--model"), "{told}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            assert!(stream.read(&mut asked).unwrap() > 0);
            let body = r#"{"data":[{"id":"a"},{"id":"b"}]}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let told = refused(url);
        assert!(
            told.contains("give it with `--model`: expected one model, found 2"),
            "{told}"
        );
        serving.join().unwrap();
    }
}
