//! Jinja as `transformers` sets it up for chat templates: Python's notation, a few functions, and limits.
//!
//! A template comes with a model, from anywhere, and must not be able to do more than to print: whatever it does, its
//! rendering ends, with a text of bounded length or with an error. Its source is bounded by [`guard`], the
//! instructions of a rendering by minijinja, and what they make and the time they take by [`account`].

use std::time::SystemTime;

use chrono::DateTime;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error as JinjaError, State, functions};

mod account;
mod accounts;
mod clock;
mod filters;
mod formats;
pub(crate) mod generation;
mod guard;
mod json_text;
mod lexer;
mod methods;
pub(crate) mod names;
mod notation;
mod numbers;
#[cfg(test)]
mod tests;
mod texts;

use crate::contained::contained;
use account::{Account, refused};
use notation::text;

/// Template instructions one rendering may take: hundreds of times what a long conversation needs.
pub(crate) const FUEL: u64 = 20_000_000;

/// The function that says which moment it is.
pub(crate) const NOW: &str = "strftime_now";

/// The name the template is compiled under; it has no extension, so nothing is escaped for HTML.
pub(crate) const NAME: &str = "chat";

/// Stack of the thread that compiles: the parser goes one call deeper for each part of an expression.
const COMPILER_STACK: usize = 256 << 20;

/// An environment with a template, and whether the template has `{% generation %}` blocks.
pub(crate) fn compiled(source: &str) -> Result<(Environment<'static>, bool), CompileError> {
    let guarded = guard::guarded(source).map_err(CompileError::Refused)?;
    let (rewritten, marks) = generation::rewrite(&guarded).map_err(CompileError::Refused)?;
    let mut environment = environment();
    let compile = move || {
        contained(|| {
            let added = environment.add_template_owned(NAME, rewritten);
            added.map(|()| environment)
        })
    };
    let compiler = std::thread::Builder::new().stack_size(COMPILER_STACK);
    let thread = compiler.spawn(compile);
    let thread = thread.map_err(|error| CompileError::Failed(error.to_string()))?;
    match thread.join() {
        Ok(Ok(Ok(environment))) => Ok((environment, marks)),
        Ok(Ok(Err(error))) => Err(CompileError::Syntax(error)),
        Ok(Err(panicked)) => Err(CompileError::Failed(panicked.to_string())),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Why a template does not compile.
pub(crate) enum CompileError {
    /// It asks for too much.
    Refused(crate::error::Error),
    /// It is no template.
    Syntax(JinjaError),
    /// The system has no thread left, or minijinja fails on it.
    Failed(String),
}

/// An environment with the functions, filters and notation that chat templates expect.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(format_value);
    accounts::add_functions(&mut environment);
    filters::add_filters(&mut environment);
    environment.add_function(
        "raise_exception",
        |state: &State, message: Value| -> Result<Value, _> {
            refused(format!(
                "it refuses the conversation: {}",
                text(&Account::of(state), &message)?
            ))
        },
    );
    // One moment for all renderings of a template, so that those of one run agree.
    set_moment(&mut environment, SystemTime::now());
    environment.add_function(
        "dict",
        |state: &State, value: Option<Value>, more: Kwargs| {
            kept(state, functions::dict(value, more)?)
        },
    );
    environment.add_function("namespace", |state: &State, value: Option<Value>| {
        if let Some(value) = &value {
            Account::of(state).keep(value, 0)?;
        }
        functions::namespace(value)
    });
    // It prints all there is.
    environment.remove_global("debug");
    // To Jinja, unlike minijinja, `none` is not iterable; templates test `tools` that way.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    add_tests(&mut environment);
    environment
}

/// Adds the tests of kinds that minijinja lacks or answers otherwise than Jinja.
fn add_tests(environment: &mut Environment<'static>) {
    // Whatever has a length and items, as a text, a mapping and what is not defined have in Python.
    environment.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("callable", |value: &Value| {
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
    });
}

/// Sets the moment that templates take for now.
pub(crate) fn set_moment(environment: &mut Environment<'static>, moment: SystemTime) {
    let moment = DateTime::from(moment);
    environment.add_function(NOW, move |format: &str| clock::strftime(moment, format));
}

fn kept(state: &State, value: Value) -> Result<Value, JinjaError> {
    Account::of(state).keep(&value, 0)?;
    Ok(value)
}

/// Prints values as Python does.
fn format_value(
    output: &mut minijinja::Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), JinjaError> {
    let account = Account::of(state);
    match value.kind() {
        ValueKind::String => account.spend_text(value.as_str().map_or(0, str::len))?,
        _ => {
            let printed = text(&account, value)?;
            return minijinja::escape_formatter(output, state, &Value::from(&*printed));
        }
    }
    minijinja::escape_formatter(output, state, value)
}
