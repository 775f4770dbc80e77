//! Addresses on the hub, and where it may send a request on to.

use std::fmt;

use url::{Host, Url};

use super::repository::Repository;

/// The hub's own address, which may be a path on a mirror.
#[derive(Clone)]
pub(super) struct Endpoint(Url);

/// Without a user's name and password, which a mirror's address may hold.
impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(shown(&self.0).trim_end_matches('/'))
    }
}

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = |found: &str| {
            format!("the hub's address (`HF_ENDPOINT`): expected `https://HOST`, found {found}")
        };
        let url =
            Url::parse(text.trim()).map_err(|error| expected(&format!("no address: {error}")))?;
        if !is_web(&url) || url.query().is_some() || url.fragment().is_some() {
            return Err(expected(&format!("`{}`", shown(&url))));
        }
        Ok(Endpoint(url))
    }

    /// Where a file of a repository is.
    pub(super) fn file(&self, repository: &Repository, revision: &str, file: &str) -> Url {
        let segments = repository.segments();
        let segments = segments.chain(["resolve", revision]);
        self.at(segments.chain(file.split('/')))
    }

    /// Where the hub answers about a repository: `parts` behind its id.
    pub(super) fn api(&self, repository: &Repository, parts: &[&str]) -> Url {
        let kind = repository.api_segment();
        self.at(["api", kind]
            .into_iter()
            .chain(repository.id().split('/'))
            .chain(parts.iter().copied()))
    }

    /// An address of the hub by the parts of its path.
    pub(super) fn at<'p>(&self, parts: impl IntoIterator<Item = &'p str>) -> Url {
        let mut url = self.0.clone();
        // Only an address that cannot be a base has no segments, and none such is an endpoint.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// The address itself.
    pub(super) fn url(&self) -> Url {
        self.0.clone()
    }

    /// Whether an address is the hub's own, by scheme, host and port: nothing else gets the token.
    pub(super) fn owns(&self, url: &Url) -> bool {
        self.0.origin() == url.origin()
    }

    /// Whether the hub is on this machine, of which a proxy has another idea.
    pub(super) fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }
}

/// Where a redirect leads. Nothing that was asked for in secret is asked for in the open.
pub(super) fn redirected(from: &Url, location: &str) -> Result<Url, String> {
    let mut to = from
        .join(location)
        .map_err(|error| format!("redirects to something that is no address: {error}"))?;
    if !is_web(&to) {
        return Err(format!(
            "redirects to `{}:`, expected `http:` or `https:`",
            to.scheme()
        ));
    }
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err(format!(
            "redirects from https to `{}`, which is not followed",
            shown(&to)
        ));
    }
    if from.origin() != to.origin() {
        // An address of the web takes both.
        let _ = to.set_username("");
        let _ = to.set_password(None);
    }
    Ok(to)
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Scheme, host, port and path. The rest may be a secret: a name and password, or a signature.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use hf_hub::RepoType;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn files_have_the_hubs_addresses() {
        let file = |endpoint: &str, kind, revision: &str, file: &str| {
            let repository = Repository::new(kind, "o/n", None).unwrap();
            let endpoint = Endpoint::parse(endpoint).unwrap();
            endpoint.file(&repository, revision, file).to_string()
        };
        assert_eq!(
            file("https://hub", RepoType::Model, "main", "config.json"),
            "https://hub/o/n/resolve/main/config.json"
        );
        assert_eq!(
            file(
                "https://hub/mirror/hf/",
                RepoType::Dataset,
                "refs/pr/1",
                "a b/c#d?.txt"
            ),
            "https://hub/mirror/hf/datasets/o/n/resolve/refs%2Fpr%2F1/a%20b/c%23d%3F.txt"
        );
    }

    #[test]
    fn only_addresses_of_the_web_are_endpoints() {
        for text in [
            "",
            "hub",
            "ftp://hub",
            "file:///etc",
            "https://hub/?a=b",
            "https://",
        ] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        let endpoint = Endpoint::parse("https://me:secret@hub/hf/").unwrap();
        assert_eq!(endpoint.to_string(), "https://hub/hf");
    }

    #[test]
    fn the_hub_is_itself_by_scheme_host_and_port() {
        let hub = Endpoint::parse("https://hub").unwrap();
        assert!(hub.owns(&url("https://hub:443/x")));
        for other in [
            "http://hub/x",
            "https://hub:8443/x",
            "https://hub.evil/x",
            "https://hub@evil/x",
            "https://evil/hub",
        ] {
            assert!(!hub.owns(&url(other)), "{other}");
        }
    }

    #[test]
    fn redirects_are_followed_on_the_web_and_not_into_the_open() {
        let from = url("https://me:secret@hub/o/n/resolve/main/a");
        let to = |location| redirected(&from, location).map(|url| url.to_string());
        assert_eq!(to("/b?c=d").unwrap(), "https://me:secret@hub/b?c=d");
        assert_eq!(to("b").unwrap(), "https://me:secret@hub/o/n/resolve/main/b");
        assert_eq!(to("//cdn/b").unwrap(), "https://cdn/b");
        assert_eq!(to("https://you:x@cdn/b").unwrap(), "https://cdn/b");
        for location in [
            "http://hub/b",
            "http://127.0.0.1/b",
            "file:///etc/passwd",
            "javascript:0",
            "https://",
        ] {
            assert!(to(location).is_err(), "{location}");
        }
        assert!(redirected(&url("http://mirror/a"), "http://cdn/b").is_ok());
        assert!(redirected(&url("http://mirror/a"), "https://cdn/b").is_ok());
    }

    #[test]
    fn what_is_shown_of_an_address_holds_no_secret() {
        assert_eq!(
            shown(&url("https://me:secret@cdn/b?Signature=secret#secret")),
            "https://cdn/b"
        );
    }
}
