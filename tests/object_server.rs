//! A server that speaks as much of the S3 protocol as an array job needs, and checks that requests are signed.
use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use crate::http::{Request, listen};

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

pub struct ObjectServer {
    address: SocketAddr,
    /// Contents by `bucket/key`.
    pub objects: Objects,
}

/// What is asked of which object.
struct Asked {
    method: String,
    /// Without the slash before it.
    path: String,
    query: BTreeMap<String, String>,
    range: Option<(usize, usize)>,
    /// With the key that the server knows.
    is_signed: bool,
    body: Vec<u8>,
}

impl ObjectServer {
    pub fn start() -> Self {
        let objects = Objects::default();
        let shared = objects.clone();
        let address = listen(move |stream| serve(&shared, stream));
        Self { address, objects }
    }

    /// What the environment says of it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ALLOW_HTTP", "true".into()),
        ]
    }
}

fn serve(objects: &Objects, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut out = stream;
    loop {
        let request = Asked::of(Request::read(&mut reader)?)?;
        let head = |status: &str, more: &str, length: usize| {
            format!(
                "HTTP/1.1 {status}\r\nETag: \"x\"\r\nLast-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\n{more}Content-Length: {length}\r\n\r\n"
            )
        };
        let (status, more, body) = answer(objects, &request);
        let length = match (
            &request.method[..],
            objects.lock().unwrap().get(&request.path),
        ) {
            ("HEAD", Some(found)) => found.len(),
            _ => body.len(),
        };
        out.write_all(head(status, &more, length).as_bytes()).ok()?;
        if request.method != "HEAD" {
            out.write_all(&body).ok()?;
        }
    }
}

fn answer(objects: &Objects, request: &Asked) -> (&'static str, String, Vec<u8>) {
    let mut objects = objects.lock().unwrap();
    let nothing = |status| (status, String::new(), Vec::new());
    if !request.is_signed {
        return nothing("403 Forbidden");
    }
    if request.query.contains_key("list-type") {
        let listed = listed(&objects, request).into_bytes();
        return ("200 OK", "Content-Type: application/xml\r\n".into(), listed);
    }
    match &request.method[..] {
        "PUT" => {
            objects.insert(request.path.clone(), request.body.clone());
            nothing("200 OK")
        }
        _ => match (objects.get(&request.path), request.range) {
            (None, _) => nothing("404 Not Found"),
            (Some(found), Some((first, last))) => {
                let last = last.min(found.len().saturating_sub(1));
                let header = format!("Content-Range: bytes {first}-{last}/{}\r\n", found.len());
                ("206 Partial Content", header, found[first..=last].to_vec())
            }
            (Some(found), None) => ("200 OK", String::new(), found.clone()),
        },
    }
}

/// Keys below a prefix, up to the next slash.
fn listed(objects: &BTreeMap<String, Vec<u8>>, request: &Asked) -> String {
    let prefix = request.query.get("prefix").cloned().unwrap_or_default();
    let whole = format!("{}/{prefix}", request.path.trim_end_matches('/'));
    let mut folders = std::collections::BTreeSet::new();
    let mut contents = String::new();
    for (key, bytes) in objects {
        let Some(rest) = key.strip_prefix(&whole) else {
            continue;
        };
        match rest.split_once('/') {
            Some((folder, _)) => drop(folders.insert(format!("{prefix}{folder}/"))),
            None => contents.push_str(&format!(
                "<Contents><Key>{prefix}{rest}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified><Size>{}</Size><ETag>x</ETag>\
                 </Contents>",
                bytes.len()
            )),
        }
    }
    let folders: String = folders
        .iter()
        .map(|folder| format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"))
        .collect();
    format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{folders}</ListBucketResult>"
    )
}

impl Asked {
    fn of(request: Request) -> Option<Self> {
        let target = &request.target;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.replace("%2F", "/"))
        };
        let range = request.header("range").map(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        let authorization = request.header("authorization").unwrap_or_default();
        Some(Self {
            path: path.trim_start_matches('/').to_owned(),
            query: query.split('&').map(pair).collect(),
            range: match range {
                None => None,
                Some(range) => Some(range?),
            },
            is_signed: authorization.starts_with("AWS4-HMAC-SHA256 Credential=key/"),
            method: request.method,
            body: request.body,
        })
    }
}
