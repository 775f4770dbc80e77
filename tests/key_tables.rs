//! The tables of keys on the pages of recipes, which are made from the schema of recipe files.
use std::path::Path;

use serde_json::{Map, Value};
use spectrain::cli::commands::schema;
use spectrain::families::registry::{RECIPES, Recipe, find};

/// Set to anything, the tests write what they would ask for.
pub const UPDATE: &str = "UPDATE_PAGES";
/// The keys of every recipe, and those of each drafter.
const PAGES: [&str; 2] = ["recipes/README.md", "recipes/drafters.md"];
const START: &str = "<!-- keys:";
const END: &str = "<!-- /keys -->";

/// Fails unless the file has this text, or writes it where [`UPDATE`] is set.
pub fn has_text(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::fs::read_to_string(&path).unwrap_or_default() == text {
        return;
    }
    assert!(
        std::env::var_os(UPDATE).is_some(),
        "`{file}` is not what the code says; run this test with `{UPDATE}=1`"
    );
    std::fs::write(&path, text).unwrap();
}

#[test]
fn the_tables_of_keys_and_the_schema_are_what_the_code_says() {
    let all: Vec<&Recipe> = RECIPES.iter().collect();
    has_text("recipes/schema.json", &schema::text(&all).unwrap());
    for name in PAGES {
        has_text(name, &filled(name));
    }
}

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// A page with every table made anew.
fn filled(name: &str) -> String {
    let page = page(name);
    let mut parts = page.split(START);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (path, rest) = part.split_once(" -->").unwrap();
        let (_, after) = rest
            .split_once(END)
            .unwrap_or_else(|| panic!("{name}: `{START}{path} -->` has no end"));
        text += &format!("{START}{path} -->\n{}{END}{after}", table(path));
    }
    text
}

#[test]
fn every_table_of_every_recipe_is_on_its_page() {
    let [of_all, of_drafters] = PAGES.map(page);
    let root = schema(find("eagle3").unwrap());
    let tables = root["properties"].as_object().unwrap().iter();
    let shared = |name: &str| name != "drafter" && name != "objective";
    let tables = tables.filter(|(name, schema)| {
        shared(name) && resolved(&root, schema).get("properties").is_some()
    });
    let shared: Vec<String> = tables.map(|(name, _)| name.clone()).collect();
    assert!(shared.len() > 5, "{shared:?}");
    // The tables of DFlash by DEER are DFlash's.
    let own = RECIPES.iter().filter(|recipe| recipe.name != "dflash-deer");
    let own = own.flat_map(|recipe| {
        ["drafter", "objective"].map(|table| format!("{}/{table}", recipe.name))
    });
    let shared = shared.into_iter().map(|path| (path, PAGES[0], &of_all));
    for (path, name, page) in shared.chain(own.map(|path| (path, PAGES[1], &of_drafters))) {
        let markers = [" -->", " beside "].map(|end| format!("{START}{path}{end}"));
        let is_there = markers.iter().any(|marker| page.contains(marker));
        assert!(is_there, "{name} lacks `{}` and `{END}`", markers[0]);
    }
    assert!(of_drafters.contains("`recipe = \"dflash-deer\"`"));
}

fn schema(recipe: &Recipe) -> Value {
    schema::of(&[recipe]).to_value()
}

/// What a schema refers to, whatever is said of the place where it stands.
fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    loop {
        let only = schema.get("allOf").and_then(Value::as_array);
        if let Some([only]) = only.map(Vec::as_slice) {
            schema = only;
        } else if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            schema = root.pointer(name.trim_start_matches('#')).unwrap();
        } else if let Some(items) = schema.get("items") {
            schema = items;
        } else if let Some(table) = among(root, schema) {
            return table;
        } else {
            return schema;
        }
    }
}

/// The table that a value may be where it may also be something shorter.
fn among<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let choices = schema.get("anyOf")?.as_array()?.iter();
    let mut choices = choices.map(|choice| resolved(root, choice));
    choices.find(|choice| choice["properties"].is_object())
}

/// The table of what stands at `asked`, without the rows that it has like another one where that is named with `beside`.
fn table(asked: &str) -> String {
    let Some((path, other)) = asked.split_once(" beside ") else {
        return whole_table(asked);
    };
    let (own, other) = (whole_table(path), whole_table(other));
    let heads = own.lines().take(2);
    let rows = own
        .lines()
        .skip(2)
        .filter(|row| !other.lines().any(|line| line == *row));
    heads.chain(rows).map(|line| format!("{line}\n")).collect()
}

/// The table of what stands at `path`: a table of the recipe, or, behind a recipe's name, one that only it has.
fn whole_table(path: &str) -> String {
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    let own = names.next_if(|name| find(name).is_some());
    let root = schema(find(own.unwrap_or("eagle3")).unwrap());
    let mut place = match own {
        Some(_) => &root["allOf"][0]["then"],
        None => &root,
    };
    for name in names {
        let inner = &place["properties"][name];
        assert!(!inner.is_null(), "there is no `{name}` of `{path}`");
        place = resolved(&root, inner);
    }
    // A table without keys has none.
    let none = serde_json::Map::new();
    let properties = place["properties"].as_object();
    if let Some(properties) = properties.or(place["oneOf"].is_null().then_some(&none)) {
        let rows = properties.iter();
        // Other tables have tables of their own.
        let rows = rows
            .filter(|(_, schema)| !path.is_empty() || resolved(&root, schema)["type"] != "object");
        let rows = rows.map(|(key, schema)| format!("| `{key}` {}", row(&root, key, schema)));
        return format!(
            "| key | default | meaning |\n|---|---|---|\n{}",
            rows.collect::<String>()
        );
    }
    let choices = place["oneOf"].as_array().unwrap();
    if choices
        .iter()
        .all(|choice| choice["properties"]["shape"].is_object())
    {
        shapes(&root, choices)
    } else {
        values(choices)
    }
}

/// The cells behind a key.
fn row(root: &Value, key: &str, schema: &Value) -> String {
    let inner = resolved(root, schema);
    let meaning = schema.get("description").or(inner.get("description"));
    let meaning = meaning.and_then(Value::as_str);
    let meaning = meaning.unwrap_or_else(|| panic!("`{key}` is not described"));
    assert!(
        !meaning.contains("[`"),
        "`{key}`: a link for readers of code: {meaning}"
    );
    let (default, meaning) = match (schema.get("default"), meaning.strip_prefix("Required. ")) {
        (_, Some(rest)) => ("*required*".to_owned(), rest),
        (None, None) => ("none".to_owned(), meaning),
        (Some(value), None) => (format!("`{}`", toml(value)), meaning),
    };
    let mut cells = format!("| {default} | {meaning}");
    let choices = inner
        .get("oneOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let choices: Vec<&Value> = choices.collect();
    if choices.iter().all(|choice| choice.get("const").is_some()) {
        for choice in choices {
            let text = choice["description"].as_str().unwrap();
            cells += &format!(" `{}`: {}", choice["const"], as_clause(text));
        }
    }
    cells.replace("\\\"", "\"") + " |\n"
}

/// A sentence behind a colon.
fn as_clause(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().unwrap();
    let word = text.split([' ', '.', ',', ':']).next().unwrap();
    // Names keep their capital: those with another one are no words.
    let is_word = !word.chars().skip(1).any(char::is_uppercase);
    let named = ["Medusa", "Hydra", "Hugging", "Transformers", "Muon"]
        .iter()
        .any(|name| text.starts_with(name));
    if is_word && !named && !text.starts_with("llama.cpp") {
        first.to_lowercase().chain(letters).collect()
    } else {
        text.to_owned()
    }
}

/// The values of a key that are not all names.
fn values(choices: &[Value]) -> String {
    let mut text = "| value | meaning |\n|---|---|\n".to_owned();
    for choice in choices {
        let value = match choice["properties"].as_object() {
            Some(keys) => format!("{{ {} = … }}", keys.keys().next().unwrap()),
            None => choice["const"].to_string(),
        };
        let meaning = choice["description"].as_str().unwrap();
        text += &format!("| `{value}` | {meaning} |\n");
    }
    text
}

/// The keys of tables that differ by their `shape`.
fn shapes(root: &Value, choices: &[Value]) -> String {
    let mut text = "| `shape` | key | default | meaning |\n|---|---|---|---|\n".to_owned();
    for choice in choices {
        let meaning = choice["description"].as_str().unwrap();
        text += &format!(
            "| `{}` | | | {meaning} |\n",
            choice["properties"]["shape"]["const"]
        );
        let further = choice.get("$ref").map(|_| resolved(root, choice));
        let tables = [Some(choice), further];
        let keys = tables
            .into_iter()
            .flatten()
            .filter_map(|table| table["properties"].as_object());
        for (key, schema) in keys.flatten().filter(|(key, _)| *key != "shape") {
            text += &format!("| | `{key}` {}", row(root, key, schema));
        }
    }
    text
}

/// A value as a recipe has it.
fn toml(value: &Value) -> String {
    let inline = |table: &Map<String, Value>| {
        let pairs = table
            .iter()
            .map(|(key, value)| format!("{key} = {}", toml(value)));
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    };
    match value {
        Value::Object(table) => inline(table),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        other => other.to_string(),
    }
}
