//! The recipes that are shipped, in the program itself: they can be run where their files are not.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use spectrain_checkpoints::near::{did_you_mean, near_file};
use spectrain_checkpoints::printable;

use crate::errors::Misuse;

/// What the names of recipe files end in.
const ENDING: &str = ".toml";

/// A recipe that is shipped.
#[derive(Debug)]
pub struct ShippedRecipe {
    /// Its file's name without the ending, which is the name of its run too.
    pub name: &'static str,
    /// What stands in its file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(ShippedRecipe {
            name: $name,
            text: include_str!(concat!("../", $name, ".toml")),
        }),*]
    };
}

/// All of them: first those that need neither data nor a GPU, then those for larger targets.
pub const SHIPPED: &[ShippedRecipe] = shipped![
    "quickstart",
    "peagle",
    "eagle1",
    "hass",
    "eagle1-ttt",
    "mtp",
    "mtp-deepseek",
    "mtp-qwen",
    "medusa",
    "hydra",
    "hydra-plus-plus",
    "redrafter",
    "dflash",
    "dflash-2",
    "dflash-deer",
    "dspark",
    "domino",
    "xpress",
    "lilicorr",
    "distillspec",
    "pard",
    "pard-2",
    "deer",
    "py-qwen3",
    "eagle3-qwen3-8b",
    "eagle3-served-qwen3-8b",
    "dflash-qwen3-8b",
    "dflash-2-qwen3-8b",
    "dspark-qwen3-8b",
    "distillspec-qwen3-8b",
    "pard-qwen3-8b",
    "pard-2-qwen3-8b",
    "deer-qwen3-8b",
    "eagle3-llama-3.1-8b",
    "eagle1-llama-3.1-8b",
    "hass-llama-3.1-8b",
    "medusa-llama-3.1-8b",
    "hydra-plus-plus-llama-3.1-8b",
    "distillspec-llama-3.1-8b",
    "pard-llama-3.1-8b",
];

impl ShippedRecipe {
    /// The one of this name.
    ///
    /// # Errors
    /// There is none: what there is, and which one may be meant.
    pub fn of(name: &str) -> Result<&'static Self> {
        let near = did_you_mean(name, names());
        let unknown = || {
            Misuse(format!(
                "no recipe `{}` is shipped; `spectrain recipe --list` names those that are{near}",
                printable(name)
            ))
        };
        Ok(find(name).ok_or_else(unknown)?)
    }

    /// What it is for, in a few words: those that its file begins with.
    pub fn purpose(&self) -> String {
        let comments = self.text.lines().map_while(|line| line.strip_prefix('#'));
        // Before it stand the schema and the command, and behind them an empty line.
        let words = comments.skip_while(|line| !line.is_empty()).skip(1);
        let words: Vec<&str> = words
            .map(str::trim)
            .take_while(|line| !line.is_empty())
            .collect();
        let words = words.join(" ");
        let ends = [". ", ": ", " ("].map(|end| words.find(end));
        let end = ends.into_iter().flatten().min().unwrap_or(words.len());
        words[..end].to_owned()
    }
}

fn find(name: &str) -> Option<&'static ShippedRecipe> {
    SHIPPED.iter().find(|recipe| recipe.name == name)
}

fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|recipe| recipe.name)
}

/// Where a recipe was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The recipe that is shipped under this name.
    Shipped(&'static str),
}

/// A file of the folder that the program runs in is told from a name that is shipped: `./NAME.toml`.
impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shipped(name) => write!(formatter, "the shipped recipe `{name}`"),
            Self::File(path) => {
                let here = if name_in(path).is_some() { "./" } else { "" };
                let path = path.display().to_string();
                write!(formatter, "{here}{}", printable(&path))
            }
        }
    }
}

/// The recipe that a user names and where it was read: the file of this name, else for a name `NAME` the file `NAME.toml`, else
/// the recipe that is shipped as `NAME`.
///
/// # Errors
/// There is no such file and no such recipe, or the file cannot be read.
pub fn found(given: &Path) -> Result<(Cow<'static, str>, Origin)> {
    let shown = printable(&given.display().to_string());
    let name = name_in(given);
    let beside = name.filter(|name| !name.ends_with(ENDING));
    let beside = beside.map(|name| PathBuf::from(format!("{name}{ENDING}")));
    // A folder of runs, say, may have the name of a recipe.
    let is_there = |path: &&Path| path.exists() && !path.is_dir();
    let mut files = [Some(given), beside.as_deref()].into_iter().flatten();
    if let Some(file) = files.find(is_there) {
        return match read_text(file) {
            Ok(text) => Ok((text.into(), Origin::File(file.to_owned()))),
            Err(error) => bail!("cannot read the recipe `{shown}`: {error}"),
        };
    }
    let plain = name.map(|name| name.strip_suffix(ENDING).unwrap_or(name));
    if let Some(recipe) = plain.and_then(find) {
        return Ok((recipe.text.into(), Origin::Shipped(recipe.name)));
    }
    if beside.is_some() && !given.is_dir() {
        return Err(Misuse(no_recipe(given, &shown)).into());
    }
    match read_text(given) {
        Ok(text) => Ok((text.into(), Origin::File(given.to_owned()))),
        Err(error) => bail!(
            "cannot read the recipe `{shown}`: {error}{}",
            instead(given)
        ),
    }
}

/// A file's text. Where it is none, the error says in which line.
fn read_text(file: &Path) -> io::Result<String> {
    String::from_utf8(std::fs::read(file)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let (before, rest) = error.as_bytes().split_at(at);
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let byte = rest.first().copied().unwrap_or_default();
        let message = format!("line {line}: expected text in UTF-8, found the byte 0x{byte:02x}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The name of a path that is only that.
fn name_in(path: &Path) -> Option<&str> {
    let mut parts = path.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) => name.to_str(),
        _ => None,
    }
}

/// What is said of a name of which there is no file and no recipe.
fn no_recipe(given: &Path, shown: &str) -> String {
    let of_kind: Vec<String> = of_kind(shown)
        .map(|recipe| format!("`{}`", recipe.name))
        .collect();
    if !of_kind.is_empty() {
        return format!(
            "no recipe `{shown}`: it is a kind of drafter, of which these recipes are shipped: {}; `spectrain init --family {shown}` \
             writes one for a target and data of your own",
            of_kind.join(", ")
        );
    }
    let mut near = did_you_mean(shown, names());
    if near.is_empty() {
        near = near_file(given);
    }
    if near.is_empty() {
        near = near_file(Path::new(&format!("{}{ENDING}", given.display())));
    }
    format!(
        "no recipe `{shown}`: there is no file `{shown}` or `{shown}{ENDING}`, and none of this name is shipped; `spectrain recipe \
         --list` names those that are{near}"
    )
}

/// The recipes that train this kind of drafter.
pub(crate) fn of_kind(kind: &str) -> impl Iterator<Item = &'static ShippedRecipe> {
    let line = format!("recipe = \"{kind}\"");
    let is_of = move |text: &str| text.lines().any(|found| found.trim_end() == line);
    SHIPPED.iter().filter(move |recipe| is_of(recipe.text))
}

/// What may be meant by a path at which there is no file.
fn instead(given: &Path) -> String {
    let near = near_file(given);
    if !near.is_empty() || given.exists() {
        return near;
    }
    let name = given.file_name().and_then(|name| name.to_str());
    let name = name.map(|name| name.strip_suffix(ENDING).unwrap_or(name));
    match name.map(|name| (name, find(name))) {
        Some((name, Some(_))) => {
            format!("; `spectrain recipe {name}` runs the one that is shipped")
        }
        Some((name, None)) => did_you_mean(name, names()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn every_recipe_in_the_folder_is_in_the_program_as_it_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
        let files = folder.read_dir().unwrap().map(|file| file.unwrap().path());
        let files = files.filter(|file| file.extension().is_some_and(|kind| kind == "toml"));
        let in_folder: BTreeMap<String, String> = files
            .map(|file| {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(&file).unwrap())
            })
            .collect();
        let own = SHIPPED.iter();
        let in_program = own.map(|recipe| (recipe.name.to_owned(), recipe.text.to_owned()));
        let in_program: BTreeMap<String, String> = in_program.collect();
        assert_eq!(in_program.len(), SHIPPED.len(), "one stands there twice");
        let names: BTreeSet<&String> = in_folder.keys().chain(in_program.keys()).collect();
        let differ: Vec<_> = names
            .into_iter()
            .filter(|name| in_folder.get(*name) != in_program.get(*name))
            .collect();
        assert!(
            differ.is_empty(),
            "in the folder and in `SHIPPED` are not the same texts of {differ:?}"
        );
    }

    #[test]
    fn the_purpose_of_a_recipe_fits_beside_its_name() {
        let longest = names().map(str::len).max().unwrap();
        for recipe in SHIPPED {
            let purpose = recipe.purpose();
            let width = longest + 2 + purpose.chars().count();
            assert!(
                purpose.len() > 10 && width <= 80,
                "{}: {purpose}",
                recipe.name
            );
        }
        assert_eq!(
            find("quickstart").unwrap().purpose(),
            "EAGLE-3 from nothing"
        );
    }

    #[test]
    fn an_unknown_name_is_asked_about() {
        let refused = |given: &str| format!("{:#}", found(Path::new(given)).unwrap_err());
        let error = refused("quikstart");
        assert!(
            error.contains("no file `quikstart` or `quikstart.toml`"),
            "{error}"
        );
        assert!(error.contains("did you mean `quickstart`?"), "{error}");
        let error = refused("eagle3");
        for part in [
            "a kind of drafter",
            "`quickstart`, ",
            "`eagle3-qwen3-8b`",
            "`spectrain init --family eagle3`",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("eagle1"), "{error}");
        let error = refused("elsewhere/quickstart.toml");
        assert!(error.contains("`spectrain recipe quickstart`"), "{error}");
        let error = refused("quikstart.toml");
        assert!(error.contains("No such file"), "{error}");
        assert!(error.contains("did you mean `quickstart`?"), "{error}");
        let error = format!("{:#}", ShippedRecipe::of("dflash_2").unwrap_err());
        assert!(error.contains("did you mean `dflash-2`?"), "{error}");
    }

    #[test]
    fn a_file_is_told_from_the_shipped_recipe_of_its_name() {
        let (_, origin) = found(Path::new("quickstart")).unwrap();
        assert_eq!(origin.to_string(), "the shipped recipe `quickstart`");
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("quickstart.toml");
        std::fs::write(&file, "a = 1").unwrap();
        let (text, origin) = found(&file).unwrap();
        assert_eq!(
            (text.as_ref(), &origin),
            ("a = 1", &Origin::File(file.clone()))
        );
        assert_eq!(origin.to_string(), file.display().to_string());
        let here = Origin::File("quickstart.toml".into());
        assert_eq!(here.to_string(), "./quickstart.toml");
    }
}
