//! Chat templates: Jinja sources of model folders, rendered as `transformers` renders them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Map;

use spectrain_checkpoints::near::nearest;
use spectrain_checkpoints::{Mismatch, printable};

use crate::conversation::{Exchange, Message};
use crate::error::Result;
use crate::jinja::{NOW, names};
use crate::tokenizer::{read_config, special_token};
use crate::tool_calls::with_objects;

mod contents;
mod program;
mod sources;

pub use program::{GenerationPrompt, Rendered};
pub use sources::files_read;

use program::{Context, Program};
use sources::Sources;

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

/// A compiled chat template and what it needs to know of the target.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    default: Program,
    /// The one for conversations with tools, where it is another one.
    tool_use: Option<Program>,
    /// The sources of both.
    source: String,
    /// Names that they may look up.
    reads: BTreeSet<String>,
    variables: Map<String, serde_json::Value>,
}

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, else that of
    /// `chat_template.json`. Conversations with tools have the one named `tool_use`, where there is one:
    /// `additional_chat_templates/tool_use.jinja`, or one beside the `default` in a list of several.
    ///
    /// # Errors
    /// There is none, a file cannot be read, or the template does not compile.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Self::find(folder)?.ok_or_else(|| sources::missing(folder))
    }

    /// The template of a [model folder](Self::from_folder), where it has one.
    ///
    /// # Errors
    /// A file cannot be read, or the template does not compile.
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        let config = read_config(folder)?;
        let Some(Sources { default, tool_use }) = sources::of_folder(folder, &config)? else {
            return Ok(None);
        };
        let (bos, eos) = (
            special_token(&config, "bos_token"),
            special_token(&config, "eos_token"),
        );
        let tool_use = tool_use.map(Program::read).transpose()?;
        let programs = (Program::read(default)?, tool_use);
        Self::of(programs, [bos.as_deref(), eos.as_deref()]).map(Some)
    }

    /// The same with the file that it was read from, which errors name.
    #[must_use]
    pub fn read_from(mut self, file: impl Into<PathBuf>) -> Self {
        self.default.file = Some(file.into());
        self
    }

    /// Compiles a template; the tokens are what it sees as `bos_token` and `eos_token`.
    pub fn from_source(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self> {
        Self::of((Program::compiled(source)?, None), [bos_token, eos_token])
    }

    fn of(
        (default, tool_use): (Program, Option<Program>),
        tokens: [Option<&str>; 2],
    ) -> Result<Self> {
        let mut source = default.source.clone();
        let mut reads = names::looked_up(&source)?;
        if let Some(Program { source: other, .. }) = &tool_use {
            reads.extend(names::looked_up(other)?);
            source.push_str(other);
        }
        let mut variables = Map::new();
        for (name, token) in ["bos_token", "eos_token"].into_iter().zip(tokens) {
            if let Some(token) = token {
                variables.insert(name.to_owned(), token.into());
            }
        }
        Ok(Self {
            default,
            tool_use,
            source,
            reads,
            variables,
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
        for program in std::iter::once(&mut self.default).chain(&mut self.tool_use) {
            program.set_moment(moment);
        }
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

    /// The source, or both one behind the other, to be hashed or searched.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether `{% generation %}` blocks say which part the assistant wrote, where there are no tools.
    pub fn marks_generation(&self) -> bool {
        self.default.marks_generation
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
        let tool_use = self.tool_use.as_ref();
        let program = tool_use.filter(|_| !exchange.tools.is_empty());
        let program = program.unwrap_or(&self.default);
        let variables = self.variables_of(exchange);
        let contents = program.contents(&self.variables);
        let render = |messages: &[Message]| {
            program.marked(Context {
                messages: &*contents.formed(messages),
                tools: exchange.tools,
                variables: &variables,
                generation,
            })
        };
        // A template that fails on objects, as it adds the arguments to other texts, gets them as texts.
        let with_objects = with_objects(exchange.messages);
        match with_objects.and_then(|messages| render(&messages).ok()) {
            Some(rendered) => Ok(rendered),
            None => render(exchange.messages),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::conversation::Conversation;
    use crate::day::Day;
    use serde_json::json;
    use spectrain_checkpoints::folder::{CHAT_TEMPLATE as FILE, TOKENIZER_CONFIG as CONFIG};

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
    fn a_folder_without_other_templates_has_that_of_its_processor() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: serde_json::Value| {
            std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        };
        let text = || {
            let found = ChatTemplate::find(folder.path()).unwrap()?;
            Some(found.render(&[][..], GenerationPrompt::Without).unwrap())
        };
        assert_eq!(text(), None);
        write(CONFIG, json!({"eos_token": "</s>"}));
        write(
            "chat_template.json",
            json!({"chat_template": "of the processor{{ eos_token }}"}),
        );
        assert_eq!(text().unwrap(), "of the processor</s>");
        write(CONFIG, json!({"chat_template": "of the tokenizer"}));
        assert_eq!(text().unwrap(), "of the tokenizer");
    }

    #[test]
    fn conversations_with_tools_have_the_template_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut conversation = Conversation::new(vec![Message::new("user", "u")]);
        let rendered = |conversation: &Conversation| {
            let template = ChatTemplate::from_folder(folder.path()).unwrap();
            template.render(conversation, GenerationPrompt::Without)
        };
        let named = json!([
            {"name": "default", "template": "{{ one }}without"},
            {"name": "tool_use", "template": "{{ other }}{{ tools[0].name }}"},
        ]);
        let config = json!({ "chat_template": named }).to_string();
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        assert_eq!(rendered(&conversation).unwrap(), "without");
        conversation.tools = vec![json!({"name": "f"})];
        assert_eq!(rendered(&conversation).unwrap(), "f");
        // Files take the place of those in the configuration.
        std::fs::write(folder.path().join(FILE), "{{ file }}").unwrap();
        assert_eq!(rendered(&conversation).unwrap(), "");
        let further = folder.path().join("additional_chat_templates");
        std::fs::create_dir(&further).unwrap();
        let further = further.join("tool_use.jinja");
        std::fs::write(&further, "{{ other }}{{ tools|length }}").unwrap();
        assert_eq!(rendered(&conversation).unwrap(), "1");
        let template = ChatTemplate::from_folder(folder.path()).unwrap();
        for name in ["file", "other", "tools"] {
            assert!(template.reads(name), "{name}");
        }
        assert!(template.source().contains("length"));
        std::fs::write(&further, "{{ tools | nofilter }}").unwrap();
        let error = rendered(&conversation).unwrap_err().to_string();
        assert!(error.contains("tool_use.jinja"), "{error}");
        conversation.tools.clear();
        assert_eq!(rendered(&conversation).unwrap(), "");
    }

    /// A conversation of which each message has its content in these parts, or as a text.
    fn in_parts(messages: &[(&str, &[&str])]) -> Vec<Message> {
        let message = |(role, parts): &(&str, &[&str])| Message {
            parts: parts.iter().map(|part| part.len()).collect(),
            ..Message::new(*role, parts.join("\n"))
        };
        messages.iter().map(message).collect()
    }

    #[test]
    fn parts_are_handed_to_templates_that_take_parts_and_lines_to_others() {
        let parts = in_parts(&[("user", &["a ", "b"]), ("tool", &["c", "d"])]);
        let texts = [Message::new("user", "a b"), Message::new("tool", "e")];
        let looping = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}";
        let of = |shown: &str, messages: &[Message]| {
            let source = format!("{{% for m in messages %}}[{shown}]{{% endfor %}}");
            rendered(&source, messages).text
        };
        // As Qwen2.5-VL has it.
        let both = format!(
            "{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{looping}{{% endif %}}"
        );
        assert_eq!(of(&both, &parts), "[a b][c\nd]");
        assert_eq!(of(&both, &texts), "[a b][e]");
        // As SmolVLM has it.
        assert_eq!(of(looping, &parts), "[a b][cd]");
        assert_eq!(of(looping, &texts), "[a b][e]");
        // Others do not take them, even where they could print a list.
        for source in [
            "{{ m.content }}",
            "{{ m['content'] + '' }}",
            "{{ 'text: ' }}{{ m.content }}",
            "{{ m.content if m.content is string else '' }}{# text #}",
            "{{ raise_exception('no text') if m.content is not string }}{{ m.content }}",
        ] {
            let shown = of(source, &parts).replace("text: ", "");
            assert_eq!(shown, "[a \nb][c\nd]", "{source}");
        }
    }

    #[test]
    fn roles_of_which_a_template_does_not_show_all_parts_have_lines() {
        let parts = in_parts(&[
            ("system", &["a ", "b"]),
            ("user", &["c ", "d"]),
            ("assistant", &["e ", "f"]),
            ("developer", &["g"]),
        ]);
        let both = "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}";
        let of = |others: &str| {
            let source = format!(
                "{{% for m in messages %}}[{{% if m.role == 'user' %}}{both}{{% else %}}{others}{{% endif %}}]{{% endfor %}}"
            );
            rendered(&source, &parts).text
        };
        // As Gemma 4 and Mistral Small 3.2 have it.
        for others in [
            "{{ m.content }}",
            "{{ m.content if m.content is string else m.content[0].text }}",
        ] {
            assert_eq!(of(others), "[a \nb][c d][e \nf][g]", "{others}");
        }
        let systems = format!(
            "{{% if m.role == 'system' %}}{both}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        );
        assert_eq!(of(&systems), "[a b][c d][e \nf][g]");
        assert_eq!(of(both), "[a b][c d][e f][g]");
    }

    #[test]
    fn a_template_that_takes_long_over_parts_has_lines() {
        let long = "{% for a in range(300) %}{% for b in range(300) %}{% set c = a %}{% endfor %}{% endfor %}";
        let of = |before: &str| {
            let source = format!(
                "{{% for m in messages %}}{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{before}\
                 {{% for part in m.content %}}{{{{ part.text }}}}{{% endfor %}}{{% endif %}}{{% endfor %}}"
            );
            rendered(&source, &in_parts(&[("user", &["a", "b"])])).text
        };
        assert_eq!(of(""), "ab");
        assert_eq!(of(long), "a\nb");
    }

    #[test]
    fn an_answer_that_calls_nothing_and_one_that_calls_with_nothing_are_shown_as_by_vllm() {
        let source = "{% for m in messages %}{{ m.content }}{% if m.tool_calls is defined %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}";
        let shown = |calls: &str| {
            let row = format!(
                r#"{{"messages":[{{"role":"assistant","content":"a","tool_calls":{calls}}}]}}"#
            );
            let row = crate::conversation::Row::from_json(&row).unwrap();
            match row.content {
                crate::conversation::Content::Conversation(of) => {
                    rendered(source, &of.messages).text
                }
                crate::conversation::Content::Tokens(_) => panic!("{calls}"),
            }
        };
        assert_eq!(shown("[]"), "a");
        for arguments in ["null", r#""[1]""#, r#""""#] {
            let calls = format!(r#"[{{"function":{{"name":"f","arguments":{arguments}}}}}]"#);
            assert_eq!(shown(&calls), "a{}", "{arguments}");
        }
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
