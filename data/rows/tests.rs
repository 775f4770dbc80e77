//! Files of every kind, and what is wrong with some.

use std::io::Write as _;

use super::*;
use crate::conversation::Content;

fn line(text: &str) -> String {
    format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}\n")
}

/// The number and the first message of each row.
fn read(path: &Path) -> Result<Vec<(usize, String)>> {
    let content = |row: LocatedRow| match row.row.content {
        Content::Conversation(mut conversation) => {
            (row.location.row, conversation.messages.remove(0).content)
        }
        Content::Tokens(_) => panic!("no tokens were written"),
    };
    read_rows(path)?.map(|row| row.map(content)).collect()
}

fn numbered(texts: &[&str]) -> Vec<(usize, String)> {
    (1..)
        .zip(texts.iter().map(|text| (*text).to_owned()))
        .collect()
}

#[test]
fn a_folder_is_read_in_the_order_of_its_file_names() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b.json"), line("three")).unwrap();
    std::fs::write(
        folder.path().join("a.jsonl"),
        format!("{}\n{}", line("one"), line("two")),
    )
    .unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not rows").unwrap();
    let seen = read(folder.path()).unwrap();
    assert_eq!(
        seen,
        [(1, "one".into()), (3, "two".into()), (1, "three".into())]
    );
}

#[test]
fn a_bad_line_is_named_and_the_next_one_still_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl");
    std::fs::write(
        &file,
        "{\"text\": 1}\n{oops\n{\"tokens\": [1], \"loss_mask\": [1]}\n",
    )
    .unwrap();
    let rows: Vec<_> = read_rows(&file).unwrap().collect();
    let place = |row| format!("`{}` row {row}", file.display());
    let first = rows[0].as_ref().unwrap_err().to_string();
    assert!(
        first.starts_with(&(place(1) + ": expected ")) && first.ends_with("found the keys `text`"),
        "{first}"
    );
    let second = rows[1].as_ref().unwrap_err().to_string();
    assert_eq!(
        second,
        place(2) + " is not JSON: key must be a string at column 2"
    );
    assert!(matches!(&rows[2], Ok(row) if matches!(row.row.content, Content::Tokens(_))));
    assert_eq!(rows.len(), 3);
}

#[test]
fn nothing_to_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(
        read_rows(folder.path()),
        Err(Error::EmptyDataset { .. })
    ));
    std::fs::write(folder.path().join("rows.jsonl"), "\n").unwrap();
    let rows: Vec<_> = read_rows(folder.path()).unwrap().collect();
    assert!(matches!(rows[..], [Err(Error::EmptyDataset { .. })]));
    assert!(matches!(
        read_rows(&folder.path().join("absent.jsonl")),
        Err(Error::Io { .. })
    ));
    std::fs::write(folder.path().join("rows.csv"), "a,b").unwrap();
    assert!(matches!(
        read_rows(&folder.path().join("rows.csv")),
        Err(Error::File { .. })
    ));
}

#[test]
fn a_list_of_objects_is_read_item_by_item() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.json");
    let rows = [line("one, [two]"), line("\\\"]é"), line("three")].join(",");
    for text in [
        format!("[{rows}]"),
        format!("\u{feff}\n [\n{rows}\n,\n] \n"),
    ] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(
            read(&file).unwrap(),
            numbered(&["one, [two]", "\"]é", "three"])
        );
    }
    std::fs::write(&file, format!("\n{}\n{}", line("one"), line("two"))).unwrap();
    let lines: Vec<usize> = read(&file).unwrap().iter().map(|(row, _)| *row).collect();
    assert_eq!(lines, [2, 4]);
}

#[test]
fn a_list_that_is_none_says_where_it_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.json");
    let one = line("one");
    for (text, found) in [
        (format!("[{one}"), "the file's end after 0 of them"),
        (format!("[{one},{one}] x"), "more text after 2 of them"),
        (format!("[{one},] x"), "more text after 1 of them"),
        (
            format!("[{one},,{one}]"),
            "nothing between two commas after 1 of them",
        ),
        (format!("[{one}, 7]"), "row 2: expected an object"),
        (format!("[{one}, {{]"), "the file's end after 1 of them"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let message = read(&file).unwrap_err().to_string();
        assert!(message.contains(found), "{text}: {message}");
    }
    std::fs::write(&file, "[ ]").unwrap();
    assert!(matches!(read(&file), Err(Error::EmptyDataset { .. })));
}

#[test]
fn compressed_files_and_patterns_are_read_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut gzip = flate2::write::GzEncoder::new(
        File::create(path("a-1.jsonl.gz")).unwrap(),
        flate2::Compression::default(),
    );
    gzip.write_all(line("one").as_bytes()).unwrap();
    gzip.finish().unwrap();
    let zstd = zstd::encode_all(format!("[{}]", line("two")).as_bytes(), 0).unwrap();
    std::fs::write(path("a-2.json.zst"), zstd).unwrap();
    std::fs::write(path("a-3.jsonl"), line("three")).unwrap();
    std::fs::write(path("b.jsonl"), line("four")).unwrap();
    std::fs::write(path("a-4.txt"), "no rows").unwrap();
    let told = ["a-1.jsonl.gz", "a-2.json.zst", "a-3.jsonl", "a-4.txt"];
    let three = Some(line("three").len() as u64);
    assert_eq!(
        told.map(|name| text_bytes(&[path(name)])),
        [None, None, three, None]
    );
    let texts =
        |rows: Vec<(usize, String)>| rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts(read(&path("a-*")).unwrap()), ["one", "two", "three"]);
    assert_eq!(
        texts(read(&path("[ab]*.jsonl")).unwrap()),
        ["three", "four"]
    );
    assert_eq!(
        texts(read(folder.path()).unwrap()),
        ["one", "two", "three", "four"]
    );
    let empty = read(&path("c*.jsonl")).unwrap_err();
    assert!(matches!(empty, Error::EmptyDataset { .. }), "{empty}");
    std::fs::write(path("a-1.jsonl.gz"), "not compressed").unwrap();
    let broken = read(&path("a-1.jsonl.gz")).unwrap_err().to_string();
    assert!(broken.contains("a-1.jsonl.gz"), "{broken}");
}

#[test]
fn a_row_that_is_no_text_or_too_long_is_named_and_the_next_one_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl");
    let mut bytes = line("one").into_bytes();
    bytes.extend(b"{\"a\": \"\xff\"}\n");
    bytes.extend(line(&"x".repeat(LONGEST_ROW)).into_bytes());
    bytes.extend(line("two").into_bytes());
    std::fs::write(&file, bytes).unwrap();
    let rows: Vec<_> = read_rows(&file).unwrap().collect();
    let message = |row: usize| rows[row].as_ref().unwrap_err().to_string();
    let place = |row| format!("`{}` row {row}: expected ", file.display());
    assert_eq!(
        message(1),
        format!(
            "{}text in UTF-8, found a byte that is not UTF-8 at place 8 (of a file in Latin-1, `iconv -f ISO-8859-1 -t UTF-8` makes \
             one in UTF-8)",
            place(2)
        )
    );
    assert_eq!(
        message(2),
        format!("{}a row of at most 32 MiB, found a longer one", place(3))
    );
    assert_eq!(rows[3].as_ref().unwrap().location.row, 4);
    assert_eq!(rows.len(), 4);
}

#[test]
fn a_file_in_utf_16_is_named_as_one_with_what_converts_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = line("one, é") + &line("two");
    let little = |mark: &str| -> Vec<u8> {
        let units = [mark, &text].concat();
        units.encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (bytes, name) in [
        (little("\u{feff}"), "UTF-16"),
        (little(""), "UTF-16LE"),
        (big, "UTF-16BE"),
    ] {
        for file in ["rows.jsonl", "rows.json"] {
            let file = folder.path().join(file);
            std::fs::write(&file, &bytes).unwrap();
            let rows: Vec<_> = read_rows(&file).unwrap().collect();
            assert_eq!(rows.len(), 1, "{name}");
            let told = rows[0].as_ref().unwrap_err().to_string();
            assert_eq!(
                told,
                format!(
                    "`{}`: expected text in UTF-8, found {name}; `iconv -f {name} -t UTF-8` makes a file in UTF-8 of it",
                    file.display()
                )
            );
        }
    }
    assert_eq!(texts::utf_16(b""), None);
    assert_eq!(texts::utf_16(line("é").as_bytes()), None);
}

#[test]
fn a_file_to_come_is_known_to_be_part_of_a_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a.jsonl"), line("one")).unwrap();
    assert!(would_read(folder.path(), &path("new.jsonl")));
    assert!(would_read(&path("a.jsonl"), &path("a.jsonl")));
    assert!(would_read(&path("*.jsonl"), &path("new.jsonl")));
    assert!(!would_read(&path("b*.jsonl"), &path("new.jsonl")));
    std::fs::create_dir(path("sub")).unwrap();
    assert!(!would_read(&path("*"), &path("sub/new.jsonl")));
    assert!(would_read(&path("**/*"), &path("sub/new.jsonl")));
    assert!(!would_read(&path("a.jsonl"), &path("new.jsonl")));
    assert!(!would_read(folder.path(), &path("new.journal")));
}
