//! One compiled template.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::SystemTime;

use minijinja::value::Value;
use minijinja::{Environment, Error as JinjaError, ErrorKind};
use serde::Serialize;
use serde_json::Map;

use super::contents::Contents;
use super::sources::Source;
use crate::contained::contained;
use crate::error::{Error, Result};
use crate::jinja::{CompileError, FUEL, NAME, compiled, generation, set_moment};

/// Template instructions a rendering of one short message may take: hundreds of times what it needs, and soon at an end.
const PROBE_FUEL: u64 = FUEL / 100;
/// The longest rendering, in bytes.
const LONGEST_OUTPUT: usize = 256 << 20;
/// Characters of a template's own message that an error repeats.
const LONGEST_MESSAGE: usize = 1000;

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

/// What a template gets.
pub(super) struct Context<'a, M: ?Sized> {
    /// A list of messages.
    pub(super) messages: &'a M,
    pub(super) tools: &'a [serde_json::Value],
    pub(super) variables: &'a Map<String, serde_json::Value>,
    pub(super) generation: GenerationPrompt,
}

/// A compiled template.
#[derive(Debug, Clone)]
pub(super) struct Program {
    environment: Environment<'static>,
    pub(super) source: String,
    pub(super) marks_generation: bool,
    /// Where it was read from, for messages.
    pub(super) file: Option<PathBuf>,
    /// Found when it first renders a conversation.
    contents: OnceLock<Contents>,
}

impl Program {
    pub(super) fn compiled(source: &str) -> Result<Self> {
        let (environment, marks_generation) = compiled(source).map_err(|error| match error {
            CompileError::Refused(error) => error,
            CompileError::Syntax(error) => Error::TemplateSyntax {
                line: error.line().unwrap_or(0),
                message: message(&error),
            },
            CompileError::Failed(why) => refused(format!("it cannot be compiled: {why}")),
        })?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            marks_generation,
            file: None,
            contents: OnceLock::new(),
        })
    }

    /// The template of a file, which errors name.
    pub(super) fn read(Source { file, text }: Source) -> Result<Self> {
        let program = Self::compiled(&text).map_err(|source| Error::At {
            location: format!("`{}`", file.display()),
            source: Box::new(source),
        })?;
        Ok(Self {
            file: Some(file),
            ..program
        })
    }

    pub(super) fn set_moment(&mut self, moment: SystemTime) {
        set_moment(&mut self.environment, moment);
    }

    /// The form in which it takes what messages say, with these variables.
    pub(super) fn contents(&self, variables: &Map<String, serde_json::Value>) -> &Contents {
        self.contents.get_or_init(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(PROBE_FUEL));
            let shown = |messages: &serde_json::Value| {
                let context = Context {
                    messages,
                    tools: &[],
                    variables,
                    generation: GenerationPrompt::Without,
                };
                print(&environment, context, ("", "")).ok()
            };
            Contents::of(&self.source, shown)
        })
    }

    /// What the template prints, and where it says that the assistant wrote it.
    pub(super) fn marked<M: Serialize + ?Sized>(
        &self,
        context: Context<'_, M>,
    ) -> Result<Rendered> {
        let rendered = self.spans(context);
        rendered.map_err(|error| match (error, &self.file) {
            (Error::TemplateRender { message }, Some(file)) => Error::TemplateRender {
                message: format!("`{}`: {message}", file.display()),
            },
            (error, _) => error,
        })
    }

    fn spans<M: Serialize + ?Sized>(&self, context: Context<'_, M>) -> Result<Rendered> {
        if !self.marks_generation {
            let text = print(&self.environment, context, ("", ""))?;
            return Ok(Rendered { text, spans: None });
        }
        let variables = serde_json::to_string(context.variables).map_err(unserialisable)?;
        let messages = serde_json::to_string(context.messages).map_err(unserialisable)?;
        let tools = serde_json::to_string(context.tools).map_err(unserialisable)?;
        let marks = generation::marks([self.source.as_str(), &variables, &messages, &tools])
            .ok_or_else(|| {
                refused("the conversation uses every private-use character".to_owned())
            })?;
        let printed = (&*marks.0.to_string(), &*marks.1.to_string());
        let text = print(&self.environment, context, printed)?;
        let (text, spans) = generation::unmark(&text, marks).ok_or_else(|| {
            refused("its `generation` blocks are nested or cut in the output".to_owned())
        })?;
        Ok(Rendered {
            text,
            spans: Some(spans),
        })
    }
}

/// What the template of an environment prints, with these marks around what the assistant wrote.
fn print<M: Serialize + ?Sized>(
    environment: &Environment<'static>,
    context: Context<'_, M>,
    marks: (&str, &str),
) -> Result<String> {
    let tools = match context.tools {
        [] => Value::from(()),
        tools => Value::from_serialize(tools),
    };
    let context = minijinja::context! {
        messages => Value::from_serialize(context.messages),
        tools,
        documents => Value::from(()),
        add_generation_prompt => context.generation == GenerationPrompt::With,
        generation_start__ => marks.0,
        generation_end__ => marks.1,
        ..Value::from_serialize(context.variables)
    };
    let template = environment
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
