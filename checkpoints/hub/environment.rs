//! What the variables say that Hugging Face's own tools read too.

use std::env;
use std::fs;
use std::path::PathBuf;

use hf_hub::Cache;

use super::options::HubOptions;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Values of a switch that leave it off.
const OFF: [&str; 4] = ["0", "off", "no", "false"];

/// The value of a variable, if it has one.
type Variables = dyn Fn(&str) -> Option<String>;

/// Where variables and the home folder come from.
pub(super) struct Environment {
    variable: Box<Variables>,
    home: Option<PathBuf>,
}

impl Environment {
    /// That of this process.
    pub(super) fn of_process() -> Self {
        Environment {
            variable: Box::new(|name| env::var(name).ok()),
            home: env::home_dir(),
        }
    }

    #[cfg(test)]
    pub(super) fn of(home: &std::path::Path, variables: &[(&str, &str)]) -> Self {
        let variables: std::collections::HashMap<String, String> = variables
            .iter()
            .map(|(name, value)| ((*name).to_string(), (*value).to_string()))
            .collect();
        Environment {
            variable: Box::new(move |name| variables.get(name).cloned()),
            home: Some(home.to_path_buf()),
        }
    }

    /// A variable that is set to something.
    fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// A path in a variable, in which `~` at the start, `$NAME` and `${NAME}` stand for what a shell puts there: a service's
    /// settings do not go through one. What is not set stays.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = self.variable(name)?;
        let home = self.home.as_ref().map(|home| home.display().to_string());
        let rest = value.strip_prefix('~').zip(home);
        let mut rest = match rest.filter(|(rest, _)| rest.is_empty() || rest.starts_with('/')) {
            Some((rest, home)) => home + rest,
            None => value,
        };
        let mut path = String::new();
        while let Some((before, behind)) = rest.split_once('$') {
            let in_braces = behind
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'));
            let (name, left) = in_braces.unwrap_or_else(|| {
                let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                behind.split_at(behind.find(is_end).unwrap_or(behind.len()))
            });
            path += before;
            match self.variable(name) {
                Some(value) => path += &value,
                None => path += &rest[before.len()..rest.len() - left.len()],
            }
            rest = left.to_owned();
        }
        Some(PathBuf::from(path + &rest))
    }

    pub(super) fn is_offline(&self) -> bool {
        self.variable("HF_HUB_OFFLINE")
            .is_some_and(|value| !OFF.contains(&value.to_lowercase().as_str()))
    }

    pub(super) fn endpoint(&self, options: &HubOptions) -> String {
        let given = options.endpoint.clone();
        given
            .or_else(|| self.variable("HF_ENDPOINT"))
            .unwrap_or_else(|| DEFAULT_ENDPOINT.to_string())
    }

    /// The folder of snapshots; `None` where nothing says which, not even a home folder.
    pub(super) fn cache(&self, options: &HubOptions) -> Option<Cache> {
        let given = options.cache.clone();
        given
            .or_else(|| self.path("HF_HUB_CACHE"))
            .or_else(|| self.hugging_face_home().map(|home| home.join("hub")))
            .map(Cache::new)
    }

    /// The access token: given, of the environment, or left by logging in.
    pub(super) fn token(&self, options: &HubOptions, cache: Option<&Cache>) -> Option<String> {
        let given = options.token.clone();
        given
            .or_else(|| self.variable("HF_TOKEN"))
            .or_else(|| self.variable("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| self.token_of_login(cache))
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty())
    }

    fn token_of_login(&self, cache: Option<&Cache>) -> Option<String> {
        if let Some(path) = self.path("HF_TOKEN_PATH") {
            return fs::read_to_string(path).ok();
        }
        let beside_the_cache = cache.and_then(Cache::token);
        beside_the_cache.or_else(|| {
            let home = self.hugging_face_home()?;
            fs::read_to_string(home.join("token")).ok()
        })
    }

    fn hugging_face_home(&self) -> Option<PathBuf> {
        if let Some(home) = self.path("HF_HOME") {
            return Some(home);
        }
        let caches = self.path("XDG_CACHE_HOME");
        let caches = caches.or_else(|| Some(self.home.as_ref()?.join(".cache")))?;
        Some(caches.join("huggingface"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_of(variables: &[(&str, &str)]) -> PathBuf {
        let environment = Environment::of(std::path::Path::new("/home/me"), variables);
        let cache = environment.cache(&HubOptions::default()).unwrap();
        cache.path().clone()
    }

    #[test]
    fn the_cache_is_where_hugging_faces_tools_have_it() {
        let home = ("HF_HOME", "/hf");
        let xdg = ("XDG_CACHE_HOME", "/caches");
        assert_eq!(
            cache_of(&[]),
            PathBuf::from("/home/me/.cache/huggingface/hub")
        );
        assert_eq!(cache_of(&[xdg]), PathBuf::from("/caches/huggingface/hub"));
        assert_eq!(cache_of(&[xdg, home]), PathBuf::from("/hf/hub"));
        let hub = ("HF_HUB_CACHE", "/elsewhere");
        assert_eq!(cache_of(&[xdg, home, hub]), PathBuf::from("/elsewhere"));
        assert_eq!(
            cache_of(&[("HF_HOME", "")]),
            PathBuf::from("/home/me/.cache/huggingface/hub")
        );
        let named = |value| cache_of(&[("HF_HUB_CACHE", value), ("DISK", "/disk")]);
        for (value, path) in [
            ("~/hf", "/home/me/hf"),
            ("~", "/home/me"),
            ("~you/hf", "~you/hf"),
            ("$DISK/hf", "/disk/hf"),
            ("/a/${DISK}x$DISK", "/a//diskx/disk"),
            ("/a/$NONE/$", "/a/$NONE/$"),
            ("/a/${NONE}/${DISK", "/a/${NONE}/${DISK"),
        ] {
            assert_eq!(named(value), PathBuf::from(path), "{value}");
        }
    }

    #[test]
    fn without_any_home_there_is_no_cache_and_no_panic() {
        let environment = Environment {
            variable: Box::new(|_| None),
            home: None,
        };
        assert!(environment.cache(&HubOptions::default()).is_none());
    }

    #[test]
    fn the_token_is_the_given_one_then_the_environments_then_that_of_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let (home, own) = (folder.path().join("hf"), folder.path().join("own"));
        fs::create_dir(&home).unwrap();
        fs::write(home.join("token"), "login\n").unwrap();
        fs::write(&own, " own \n").unwrap();
        let home = ("HF_HOME", home.to_str().unwrap());
        let path = ("HF_TOKEN_PATH", own.to_str().unwrap());
        let token = |variables: &[(&str, &str)], given: Option<&str>| {
            let environment = Environment::of(folder.path(), variables);
            let options = HubOptions {
                token: given.map(str::to_owned),
                ..HubOptions::default()
            };
            let cache = environment.cache(&options).unwrap();
            environment.token(&options, Some(&cache))
        };
        assert_eq!(token(&[], None), None);
        assert_eq!(token(&[home], None).unwrap(), "login");
        assert_eq!(
            token(&[home, ("HF_HUB_CACHE", "/c")], None).unwrap(),
            "login"
        );
        assert_eq!(token(&[home, path], None).unwrap(), "own");
        let old = ("HUGGING_FACE_HUB_TOKEN", "old");
        assert_eq!(token(&[home, old], None).unwrap(), "old");
        let set = ("HF_TOKEN", "set");
        assert_eq!(token(&[old, set], None).unwrap(), "set");
        assert_eq!(token(&[home, path, set], None).unwrap(), "set");
        assert_eq!(token(&[home, path, set], Some("given")).unwrap(), "given");
        assert_eq!(token(&[home, ("HF_TOKEN", "")], None).unwrap(), "login");
    }

    #[test]
    fn the_switch_is_off_where_it_says_so() {
        let offline = |value| {
            let variables = [("HF_HUB_OFFLINE", value)];
            Environment::of(std::path::Path::new("/"), &variables).is_offline()
        };
        assert!(["1", "ON", "yes", "true"].into_iter().all(offline));
        assert!(!["", "0", "off", "No", "FALSE"].into_iter().any(offline));
    }
}
