//! Chat templates: Jinja sources of model folders, rendered as `transformers` renders them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use minijinja::value::Value;
use minijinja::{Environment, Error as JinjaError, ErrorKind};
use serde_json::Map;

use spectrain_checkpoints::near::nearest;
use spectrain_checkpoints::{Mismatch, printable};

use crate::contained::contained;
use crate::conversation::Exchange;
use crate::error::{Error, Result};
use crate::jinja::{CompileError, FUEL, NAME, NOW, compiled, generation, names, set_moment};
use crate::tokenizer::{read_config, special_token};
use crate::tool_calls::with_objects;

/// The longest rendering, in bytes.
const LONGEST_OUTPUT: usize = 256 << 20;
/// Characters of a template's own message that an error repeats.
const LONGEST_MESSAGE: usize = 1000;
const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";

/// The variables that every rendering sets itself.
pub const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Fails at the first of these names of variables that is one of [`OWN_VARIABLES`], which rows, recipes and options cannot set.
///
/// # Errors
/// What was expected, and that name.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Mismatch> {
    match names.into_iter().find(|name| OWN_VARIABLES.contains(name)) {
        Some(name) => Err(Mismatch::new(
            "only variables of the template itself",
            format!("`{name}`, which the program sets"),
        )),
        None => Ok(()),
    }
}

/// Whether a rendering ends with the opening of an assistant turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: the target would go on by writing its answer.
    With,
    /// It ends with the last message.
    Without,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges inside `{% generation %}` blocks; none where the template has no such blocks.
    pub spans: Option<Vec<Range<usize>>>,
}

/// A compiled chat template and what it needs to know of the target.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    marks_generation: bool,
    /// Names that it may look up.
    reads: BTreeSet<String>,
    variables: Map<String, serde_json::Value>,
    /// Where it was read from, for messages.
    file: Option<PathBuf>,
}

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let config = read_config(folder)?;
        let path = folder.join(FILE);
        let (path, source) = match std::fs::read_to_string(&path) {
            Ok(source) => (path, source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                (folder.join(CONFIG), source_in_config(folder, &config)?)
            }
            Err(error) => return Err(Error::io(&path)(error)),
        };
        let (bos, eos) = (
            special_token(&config, "bos_token"),
            special_token(&config, "eos_token"),
        );
        let template = Self::from_source(&source, bos.as_deref(), eos.as_deref());
        let template = template.map_err(|source| Error::At {
            location: format!("`{}`", path.display()),
            source: Box::new(source),
        });
        Ok(template?.read_from(path))
    }

    /// The same with the file that it was read from, which errors name.
    #[must_use]
    pub fn read_from(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Compiles a template; the tokens are what it sees as `bos_token` and `eos_token`.
    pub fn from_source(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self> {
        let (environment, marks_generation) = compiled(source).map_err(|error| match error {
            CompileError::Refused(error) => error,
            CompileError::Syntax(error) => Error::TemplateSyntax {
                line: error.line().unwrap_or(0),
                message: message(&error),
            },
            CompileError::Failed(why) => refused(format!("it cannot be compiled: {why}")),
        })?;
        let mut variables = Map::new();
        for (name, token) in [("bos_token", bos_token), ("eos_token", eos_token)] {
            if let Some(token) = token {
                variables.insert(name.to_owned(), token.into());
            }
        }
        Ok(Self {
            environment,
            source: source.to_owned(),
            marks_generation,
            reads: names::looked_up(source)?,
            variables,
            file: None,
        })
    }

    /// Sets variables the template reads beside the messages, such as `enable_thinking`; [`OWN_VARIABLES`] stay as they are.
    #[must_use]
    pub fn with_variables(mut self, variables: Map<String, serde_json::Value>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// The same at a fixed moment, which it takes for now in place of the one at which it was compiled.
    #[must_use]
    pub fn at(mut self, moment: SystemTime) -> Self {
        set_moment(&mut self.environment, moment);
        self
    }

    /// Whether it may print what day it is.
    pub fn reads_date(&self) -> bool {
        self.reads(NOW)
    }

    /// The variables that were set, beside `bos_token` and `eos_token`.
    pub fn variables(&self) -> Map<String, serde_json::Value> {
        let set = self.variables.iter();
        set.filter(|(name, _)| !["bos_token", "eos_token"].contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// Whether it may look up a variable of this name.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.reads.contains(name)
    }

    /// Those of a row's variables that may change what is rendered, by their names: the template reads them, and has others in
    /// their places or none.
    pub fn changed_by<'a>(
        &self,
        variables: &'a Map<String, serde_json::Value>,
    ) -> BTreeMap<&'a str, &'a serde_json::Value> {
        let changes = variables.iter().filter(|(name, value)| {
            self.reads(name.as_str()) && self.variables.get(name.as_str()) != Some(*value)
        });
        changes
            .map(|(name, value)| (name.as_str(), value))
            .collect()
    }

    /// Its variables, with those of a row in their places.
    fn variables_of(&self, exchange: Exchange<'_>) -> Cow<'_, Map<String, serde_json::Value>> {
        match exchange.variables {
            Some(own) if !own.is_empty() => {
                let mut variables = self.variables.clone();
                variables.extend(own.clone());
                Cow::Owned(variables)
            }
            _ => Cow::Borrowed(&self.variables),
        }
    }

    /// The names of those of these variables that the template does not read, each with what it may be a slip of.
    pub(crate) fn unread(&self, variables: &Map<String, serde_json::Value>) -> Vec<String> {
        let told = |name: &String| {
            let known = self.reads.iter().map(String::as_str);
            let known = known.filter(|known| !OWN_VARIABLES.contains(known));
            let meant = nearest(name, known).map(|known| format!(" (did you mean `{known}`?)"));
            format!("`{}`{}", printable(name), meant.unwrap_or_default())
        };
        let unread = variables.keys().filter(|name| !self.reads(name));
        unread.map(told).collect()
    }

    /// What to say of each variable that was set and that the template does not read.
    pub fn unread_variables(&self) -> Vec<String> {
        let unread = self.unread(&self.variables()).into_iter();
        let told = unread.map(|name| format!("the chat template reads no variable {name}"));
        told.collect()
    }

    /// The source, to be hashed or stored beside what was made with it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether `{% generation %}` blocks say which part the assistant wrote.
    pub fn marks_generation(&self) -> bool {
        self.marks_generation
    }

    /// The text of a conversation.
    pub fn render<'a>(
        &self,
        exchange: impl Into<Exchange<'a>>,
        generation: GenerationPrompt,
    ) -> Result<String> {
        self.render_marked(exchange, generation)
            .map(|rendered| rendered.text)
    }

    /// The text of a conversation and where the template says the assistant wrote it.
    pub fn render_marked<'a>(
        &self,
        exchange: impl Into<Exchange<'a>>,
        generation: GenerationPrompt,
    ) -> Result<Rendered> {
        let exchange = exchange.into();
        // A template that fails on objects, as it adds the arguments to other texts, gets them as texts.
        let rendered = with_objects(exchange.messages).and_then(|messages| {
            let exchange = Exchange {
                messages: &messages,
                ..exchange
            };
            self.marked(exchange, generation).ok()
        });
        let rendered = match rendered {
            Some(rendered) => Ok(rendered),
            None => self.marked(exchange, generation),
        };
        rendered.map_err(|error| match (error, &self.file) {
            (Error::TemplateRender { message }, Some(file)) => Error::TemplateRender {
                message: format!("`{}`: {message}", file.display()),
            },
            (error, _) => error,
        })
    }

    fn marked(&self, exchange: Exchange<'_>, generation: GenerationPrompt) -> Result<Rendered> {
        if !self.marks_generation {
            let text = self.print(exchange, generation, ("", ""))?;
            return Ok(Rendered { text, spans: None });
        }
        let variables = self.variables_of(exchange);
        let variables = serde_json::to_string(&*variables).map_err(unserialisable)?;
        let messages = serde_json::to_string(exchange.messages).map_err(unserialisable)?;
        let tools = serde_json::to_string(exchange.tools).map_err(unserialisable)?;
        let marks = generation::marks([self.source.as_str(), &variables, &messages, &tools])
            .ok_or_else(|| {
                refused("the conversation uses every private-use character".to_owned())
            })?;
        let printed = (&*marks.0.to_string(), &*marks.1.to_string());
        let text = self.print(exchange, generation, printed)?;
        let (text, spans) = generation::unmark(&text, marks).ok_or_else(|| {
            refused("its `generation` blocks are nested or cut in the output".to_owned())
        })?;
        Ok(Rendered {
            text,
            spans: Some(spans),
        })
    }

    /// What the template prints, with these marks around what the assistant wrote.
    fn print(
        &self,
        exchange: Exchange<'_>,
        generation: GenerationPrompt,
        marks: (&str, &str),
    ) -> Result<String> {
        let tools = match exchange.tools {
            [] => Value::from(()),
            tools => Value::from_serialize(tools),
        };
        let messages = exchange.messages;
        let context = minijinja::context! {
            messages,
            tools,
            documents => Value::from(()),
            add_generation_prompt => generation == GenerationPrompt::With,
            generation_start__ => marks.0,
            generation_end__ => marks.1,
            ..Value::from_serialize(&*self.variables_of(exchange))
        };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| failed(&error))?;
        let mut output = Output::default();
        let rendered = contained(|| template.render_captured_to(context, &mut output).map(drop));
        let rendered = rendered.map_err(|panicked| refused(panicked.to_string()))?;
        if output.full {
            let mebibytes = LONGEST_OUTPUT >> 20;
            return Err(refused(format!(
                "stopped: it prints more than {mebibytes} MiB"
            )));
        }
        rendered.map_err(|error| failed(&error))?;
        String::from_utf8(output.bytes).map_err(|error| refused(error.to_string()))
    }
}

/// What a template prints, up to a length.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.full |= self.bytes.len() + bytes.len() > LONGEST_OUTPUT;
        if self.full {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `chat_template` of `tokenizer_config.json`: a text, or a list of named ones of which `default` counts.
fn source_in_config(folder: &Path, config: &serde_json::Value) -> Result<String> {
    let template = &config["chat_template"];
    let named = || {
        let default = template
            .as_array()?
            .iter()
            .find(|entry| entry["name"] == "default")?;
        default["template"].as_str()
    };
    template.as_str().or_else(named).map(str::to_owned).ok_or_else(|| Error::File {
        path: folder.join(CONFIG),
        mismatch: Mismatch::new(format!("`chat_template` as a text or a list with one named `default`, or `{FILE}` beside it"), if template.is_null() { "neither" } else { "another form" }),
    })
}

fn message(error: &JinjaError) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned)
}

fn failed(error: &JinjaError) -> Error {
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::TemplateEndless { limit: FUEL };
    }
    match error.line() {
        Some(line) => refused(format!("line {line}: {}", message(error))),
        None => refused(message(error)),
    }
}

fn refused(mut message: String) -> Error {
    if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    Error::TemplateRender { message }
}

#[expect(clippy::needless_pass_by_value, reason = "passed to `map_err`")]
fn unserialisable(error: serde_json::Error) -> Error {
    refused(error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::conversation::{Conversation, Message};
    use crate::day::Day;
    use serde_json::json;

    /// ChatML without generation blocks.
    pub(crate) const CHATML: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::from_source(source, Some("<s>"), None).unwrap()
    }

    fn rendered(source: &str, messages: &[Message]) -> Rendered {
        template(source)
            .render_marked(messages, GenerationPrompt::Without)
            .unwrap()
    }

    fn refusal(source: &str) -> String {
        template(source)
            .render(&[Message::new("user", "u")][..], GenerationPrompt::Without)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn chatml_renders_turns_and_the_generation_prompt() {
        let messages = [Message::new("user", "hi"), Message::new("assistant", " yo")];
        let chatml = template(CHATML);
        let turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n yo<|im_end|>\n";
        assert_eq!(
            chatml
                .render(&messages[..], GenerationPrompt::Without)
                .unwrap(),
            turns
        );
        assert_eq!(
            chatml
                .render(&messages[..1], GenerationPrompt::With)
                .unwrap(),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(
            chatml
                .render_marked(&messages[..], GenerationPrompt::Without)
                .unwrap()
                .spans,
            None
        );
    }

    #[test]
    fn a_variable_that_is_not_read_is_named_with_what_it_may_be_a_slip_of() {
        let told = |source: &str, name: &str| {
            let variables = Map::from_iter([(name.to_owned(), json!(false))]);
            template(source)
                .with_variables(variables)
                .unread_variables()
        };
        let thinking =
            "{% set enable_thinking = enable_thinking if enable_thinking is defined else true %}";
        assert_eq!(told(thinking, "enable_thinking"), [""; 0]);
        assert_eq!(
            told(thinking, "enable_thinkng"),
            [
                "the chat template reads no variable `enable_thinkng` (did you mean `enable_thinking`?)"
            ]
        );
        assert_eq!(
            told(CHATML, "enable_thinking"),
            ["the chat template reads no variable `enable_thinking`"]
        );
        assert_eq!(template(CHATML).unread_variables(), [""; 0]);
    }

    #[test]
    fn python_methods_and_values_look_like_python() {
        let mut message = Message::new("user", "  a</think>b\n");
        message.extra.insert(
            "tool_calls".into(),
            json!([{"b": 1, "a": "é<&>\"\n", "c": [], "d": {"x": null}}]),
        );
        let source = "{{ messages[0].content.split('</think>')[-1].strip() }}|{{ messages[0]['content'].startswith(' ') }}|\
                      {{ tools }}|{{ missing }}|{{ bos_token }}{{ eos_token }}|{{ messages[0].tool_calls | tojson }}|\
                      {% for key, value in messages[0].items() %}{{ key }} {% endfor %}|\
                      {% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}\
                      {{ i }}{% endfor %}";
        assert_eq!(
            rendered(source, &[message]).text,
            "b|True|None||<s>|[{\"b\": 1, \"a\": \"é<&>\\\"\\n\", \"c\": [], \"d\": {\"x\": null}}]|\
             role content tool_calls |02"
        );
    }

    #[test]
    fn generation_blocks_give_the_assistants_bytes_and_keep_whitespace_control() {
        let source = "\
{% for message in messages %}
    {%- if message.role == 'assistant' %}
        [A] {% generation -%}   {{ message.content }}<end>{% endgeneration %}

    {%- else %}
        [U] {{ message.content }}
    {%- endif %}
{%- endfor %}";
        let messages = [
            Message::new("user", "é"),
            Message::new("assistant", "yes"),
            Message::new("assistant", ""),
        ];
        let marked = rendered(source, &messages);
        let plain = source
            .replace("{% generation -%}   ", "")
            .replace("{% endgeneration %}", "");
        assert_eq!(marked.text, rendered(&plain, &messages).text);
        let spans: Vec<&str> = marked
            .spans
            .unwrap()
            .into_iter()
            .map(|span| &marked.text[span])
            .collect();
        assert_eq!(spans, ["yes<end>", "<end>"]);
    }

    #[test]
    fn private_use_characters_in_a_message_are_ordinary_text() {
        let source =
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
        let nasty = "\u{e000}a\u{e001}\u{e001}";
        let marked = rendered(source, &[Message::new("assistant", nasty)]);
        assert_eq!(marked.text, nasty);
        assert_eq!(&marked.text[marked.spans.unwrap()[0].clone()], nasty);
    }

    #[test]
    fn what_fails_as_it_is_rendered_names_the_file_of_the_template() {
        let named = template("{{ 1 | nofilter }}").read_from("t/chat_template.jinja");
        let error = named
            .render(&[][..], GenerationPrompt::Without)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "chat template: `t/chat_template.jinja`: line 1: filter nofilter is unknown"
        );
    }

    #[test]
    fn a_template_that_may_print_the_date_is_known() {
        let on_that_day = "{% if strftime_now is defined %}{{ strftime_now('%d %B') }}{% endif %}";
        assert!(template(on_that_day).reads_date());
        assert!(!template(CHATML).reads_date());
        let day: Day = "2024-02-29".parse().unwrap();
        let rendered = template(on_that_day).at(day.begin());
        let rendered = rendered.render(&[][..], GenerationPrompt::Without).unwrap();
        assert_eq!(rendered, "29 February");
    }

    #[test]
    fn variables_reach_the_template() {
        let variables = json!({"enable_thinking": false});
        let template = template("{{ enable_thinking }}")
            .with_variables(variables.as_object().unwrap().clone());
        assert_eq!(
            template.render(&[][..], GenerationPrompt::Without).unwrap(),
            "False"
        );
    }

    #[test]
    fn variables_of_a_row_stand_in_the_places_of_those_of_all_rows() {
        let source = "{{ enable_thinking }} {{ effort }}";
        let variables = |value: serde_json::Value| value.as_object().unwrap().clone();
        let template = template(source).with_variables(variables(
            json!({"enable_thinking": false, "effort": "low"}),
        ));
        let rendered = |own: serde_json::Value| {
            let mut conversation = Conversation::new(vec![Message::new("user", "u")]);
            conversation.variables = variables(own);
            template
                .render(&conversation, GenerationPrompt::With)
                .unwrap()
        };
        assert_eq!(rendered(json!({})), "False low");
        assert_eq!(rendered(json!({"effort": "high"})), "False high");
        // One row changes nothing for the next.
        assert_eq!(rendered(json!({})), "False low");
        let changes = |own: serde_json::Value| {
            let own = variables(own);
            let changes = template.changed_by(&own).into_keys();
            changes.map(str::to_owned).collect::<Vec<_>>()
        };
        let own = json!({"unread": 1, "enable_thinking": true, "effort": "low"});
        assert_eq!(changes(own), ["enable_thinking"]);
    }

    #[test]
    fn failures_say_what_is_wrong() {
        let syntax = ChatTemplate::from_source("a\n{% if %}", None, None)
            .unwrap_err()
            .to_string();
        assert!(syntax.starts_with("chat template line 2: "), "{syntax}");
        let unclosed = ChatTemplate::from_source("{% generation %}", None, None)
            .unwrap_err()
            .to_string();
        assert!(unclosed.starts_with("chat template line 1: "), "{unclosed}");
        assert_eq!(
            refusal("{{ raise_exception('no users') }}"),
            "chat template: line 1: it refuses the conversation: no users"
        );
        assert!(refusal("{{ raise_exception('é' * 2000) }}").ends_with("é…"));
        let nested = "{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}";
        assert!(refusal(nested).contains("nested"));
    }

    #[test]
    fn a_template_that_loops_is_stopped() {
        let three = "{% for a in range(9000) %}{% for b in range(9000) %}{% set c = a %}{% endfor %}{% endfor %}";
        let message = refusal(three);
        assert!(message.contains("loops without end"), "{message}");
    }

    #[test]
    fn the_folder_says_which_template() {
        let folder = tempfile::tempdir().unwrap();
        let message = ChatTemplate::from_folder(folder.path())
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("chat_template") && message.ends_with("found neither"),
            "{message}"
        );
        let config = |value: serde_json::Value| {
            std::fs::write(folder.path().join(CONFIG), value.to_string()).unwrap()
        };
        let text = || {
            ChatTemplate::from_folder(folder.path())
                .unwrap()
                .render(&[][..], GenerationPrompt::Without)
                .unwrap()
        };
        config(json!({"chat_template": "one{{ eos_token }}", "eos_token": {"content": "</s>"}}));
        assert_eq!(text(), "one</s>");
        let named =
            json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]);
        config(json!({ "chat_template": named }));
        assert_eq!(text(), "two");
        std::fs::write(folder.path().join(FILE), "three").unwrap();
        assert_eq!(text(), "three");
    }

    #[test]
    fn a_template_that_does_not_compile_is_named_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [
            (CONFIG, json!({"chat_template": "{% for"}).to_string()),
            (FILE, "{% for".to_owned()),
        ] {
            let path = folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            let message = ChatTemplate::from_folder(folder.path()).unwrap_err();
            let place = format!("`{}`: chat template line 1: ", path.display());
            assert!(message.to_string().starts_with(&place), "{message}");
        }
    }
}
