//! The words of a shell's commands: quotes, comments, what ends a command, and where its output goes, which is no word of it.

/// Spaces between words.
pub(super) const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// Where input comes from or output goes: the next word is the file. A longer one stands before those it begins with.
const REDIRECTIONS: [&str; 12] = [
    "&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">",
];

/// Variables that stand for all arguments of a script.
pub(super) const ARGUMENTS: [char; 2] = ['@', '*'];

/// What follows each other in a script.
pub(super) enum Entry {
    /// A command, by its words.
    Command(Vec<Word>),
    /// The elements of an array, behind its name, which ends in a `+` where they are added to those that it has.
    Array(String, Vec<Word>),
    /// The begin of commands that run in a shell of their own.
    Open,
    /// Their end.
    Close,
}

/// A word of a command: its parts, behind each other.
pub(super) type Word = Vec<Part>;

/// A part of a word.
#[derive(Clone)]
pub(super) struct Part {
    /// As it is written, without quotes.
    pub(super) text: String,
    /// Whether it is a variable, or a command whose output is asked for, and the value stands in its place.
    pub(super) is_asked: bool,
    /// Whether it is in quotes.
    pub(super) is_quoted: bool,
}

/// The commands of a script.
///
/// # Errors
/// The line in which a quote does not end.
pub(super) fn entries(script: &str) -> Result<Vec<Entry>, &str> {
    let mut reader = Reader::default();
    for line in script.lines() {
        reader.line(line).ok_or(line.trim())?;
    }
    reader.end_command();
    Ok(reader.entries)
}

/// A text as one word, of which spaces and operators are letters.
pub(super) fn word_of(text: &str) -> Word {
    let mut rest = Rest::of(text);
    let mut word = Word::new();
    while !rest.text.is_empty() {
        if rest.part(&mut word).is_none() {
            return vec![Part::plain(text)];
        }
    }
    word
}

/// A word as it is in quotes.
pub(super) fn quoted(word: &[Part]) -> Word {
    let parts = word.iter().cloned();
    let quoted = parts.map(|part| Part {
        is_quoted: true,
        ..part
    });
    quoted.collect()
}

/// The text of a word that has no quotes and asks for nothing.
pub(super) fn plain(word: &[Part]) -> Option<&str> {
    match word {
        [only] if !only.is_asked && !only.is_quoted => Some(only.text.as_str()),
        _ => None,
    }
}

/// Whether a word is `NAME=VALUE` or `NAME+=VALUE`.
pub(super) fn is_assignment(word: &[Part]) -> bool {
    let name = word.get(..1).and_then(plain);
    let name = name.and_then(|text| text.split_once('='));
    name.is_some_and(|(name, _)| is_name(name))
}

/// Whether a text names a variable, with or without a `+` behind it.
fn is_name(text: &str) -> bool {
    let name = text.strip_suffix('+').unwrap_or(text);
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What has been read of a script.
#[derive(Default)]
struct Reader {
    entries: Vec<Entry>,
    /// The array that the words are elements of, where they are none of a command.
    array: Option<String>,
    words: Vec<Word>,
    /// The word that has begun.
    word: Option<Word>,
    /// Whether the next word is the file of a redirection.
    is_file: bool,
}

impl Reader {
    /// Reads a line; none where a quote does not end.
    fn line(&mut self, line: &str) -> Option<()> {
        let mut rest = Rest::of(line);
        while let Some(letter) = rest.text.chars().next() {
            if letter == '#' && self.word.is_none() {
                break;
            }
            let mut redirections = REDIRECTIONS.into_iter();
            if SPACES.contains(&letter) {
                rest.take(1);
                self.end_word();
            } else if let Some(length) = rest.brackets() {
                let whole = Part::quoted(rest.take(length));
                add(self.word.get_or_insert_default(), whole);
            } else if let Some(found) = redirections.find(|found| rest.text.starts_with(found)) {
                rest.take(found.len());
                self.redirect(found);
            } else if matches!(letter, ';' | '|' | '&' | '(' | ')') {
                rest.take(1);
                self.end_by(letter);
            } else {
                rest.part(self.word.get_or_insert_default())?;
            }
        }
        self.end_word();
        // The elements of an array may stand on lines of their own.
        if self.array.is_none() {
            self.end_command();
        }
        Some(())
    }

    fn redirect(&mut self, operator: &str) {
        let number = self.word.as_deref().and_then(plain);
        let is_number = number.is_some_and(|text| text.chars().all(|c| c.is_ascii_digit()));
        if is_number && !operator.starts_with('&') {
            self.word = None;
        }
        self.end_word();
        self.is_file = true;
    }

    /// Ends a command by a letter that is none of its words.
    fn end_by(&mut self, letter: char) {
        let assigned = self.word.as_deref().and_then(plain);
        let assigned = assigned.and_then(|text| text.strip_suffix('='));
        let array = assigned.filter(|name| letter == '(' && is_name(name));
        if let Some(name) = array.map(str::to_owned) {
            self.word = None;
            self.end_command();
            self.array = Some(name);
            return;
        }
        let is_array = self.array.is_some();
        self.end_command();
        match letter {
            '(' => self.entries.push(Entry::Open),
            ')' if !is_array => self.entries.push(Entry::Close),
            _ => {}
        }
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && !std::mem::take(&mut self.is_file)
        {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_file = false;
        let words = std::mem::take(&mut self.words);
        match self.array.take() {
            Some(name) => self.entries.push(Entry::Array(name, words)),
            None if words.is_empty() => {}
            None => self.entries.push(Entry::Command(words)),
        }
    }
}

/// What is still to be read of a line.
struct Rest<'a> {
    text: &'a str,
    /// Whether all brackets and backquotes ended so far. Where one does not, none behind it does.
    all_end: bool,
}

impl<'a> Rest<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text,
            all_end: true,
        }
    }

    /// Takes so many bytes.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.text.split_at(length);
        self.text = rest;
        taken
    }

    /// How long what is next is where it is a file that commands stand for, `<(…)` or `>(…)`, or a calculation, `((…))`.
    fn brackets(&mut self) -> Option<usize> {
        let mut openings = ["<(", ">(", "(("].into_iter();
        if !self.all_end || !openings.any(|opening| self.text.starts_with(opening)) {
            return None;
        }
        let length = bracketed(self.text);
        self.all_end = length.is_some();
        length
    }

    /// Adds what is next to a word: something in quotes, or a piece. None where a quote does not end.
    fn part(&mut self, word: &mut Word) -> Option<()> {
        match self.text.chars().next()? {
            '\\' => {
                self.take(1);
                let escaped = self.text.chars().next();
                if let Some(letter) = escaped {
                    add(word, Part::quoted(self.take(letter.len_utf8())));
                }
            }
            '\'' => {
                self.take(1);
                let length = self.text.find('\'')?;
                add(word, Part::quoted(self.take(length)));
                self.take(1);
            }
            '"' => {
                self.take(1);
                self.double_quoted(word)?;
            }
            _ => add(word, self.piece()),
        }
        Some(())
    }

    /// Adds all up to the quote that ends it.
    fn double_quoted(&mut self, word: &mut Word) -> Option<()> {
        if self.text.starts_with('"') {
            // A word without letters is one, too.
            add(word, Part::quoted(""));
        }
        loop {
            let letter = self.text.chars().next()?;
            let is_escape = letter == '\\' && self.text[1..].starts_with(['$', '`', '"', '\\']);
            if letter == '"' {
                self.take(1);
                return Some(());
            } else if is_escape {
                self.take(1);
                add(word, Part::quoted(self.take(1)));
            } else {
                let piece = self.piece();
                add(
                    word,
                    Part {
                        is_quoted: true,
                        ..piece
                    },
                );
            }
        }
    }

    /// Takes a variable, a command whose output is asked for, or a letter.
    fn piece(&mut self) -> Part {
        let opens = ["$(", "${", "`"];
        let opens = opens.iter().any(|open| self.text.starts_with(open));
        let asks = self.text.starts_with(['$', '`']) && (self.all_end || !opens);
        if asks && let Some(length) = asked(self.text) {
            return Part {
                is_asked: true,
                ..Part::plain(self.take(length))
            };
        }
        self.all_end &= !opens;
        let letter = self.text.chars().next().map_or(0, char::len_utf8);
        // This bracket ends no command.
        let length = if self.text.starts_with("$(") {
            2
        } else {
            letter
        };
        Part::plain(self.take(length))
    }
}

impl Part {
    fn plain(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            is_asked: false,
            is_quoted: false,
        }
    }

    fn quoted(text: &str) -> Self {
        Self {
            is_quoted: true,
            ..Self::plain(text)
        }
    }
}

/// Adds a part to a word.
fn add(word: &mut Word, part: Part) {
    match word.last_mut() {
        Some(last) if !last.is_asked && !part.is_asked && last.is_quoted == part.is_quoted => {
            last.text += &part.text;
        }
        _ => word.push(part),
    }
}

/// How long the variable is, or the command whose output is asked for, with which a text begins. None where it begins with neither, or
/// the end is missing.
pub(super) fn asked(text: &str) -> Option<usize> {
    bracketed(text).or_else(|| {
        let (name, _, length) = named(text.strip_prefix('$')?);
        (!name.is_empty() && length > 0).then_some(length + 1)
    })
}

/// Whether what is asked for is a command's output, and no variable.
pub(super) fn is_command(asked: &str) -> bool {
    asked.starts_with("$(") || asked.starts_with('`')
}

/// How long what a text begins with is, in brackets or in backquotes; none where it begins with neither, or the end is missing.
fn bracketed(text: &str) -> Option<usize> {
    if let Some(inner) = text.strip_prefix('`') {
        return Some(inner.find('`')? + 2);
    }
    let mut openings = ["$(", "<(", ">(", "("].into_iter();
    let opening = openings.find(|opening| text.starts_with(opening))?;
    // What ends each bracket and quote that is open.
    let mut open = vec![')'];
    let (mut is_escaped, mut before) = (false, ' ');
    for (at, letter) in text[opening.len()..].char_indices() {
        let end = *open.last()?;
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if end != '\'' => is_escaped = true,
            _ if letter == end => _ = open.pop(),
            '(' if end == ')' || (end == '"' && before == '$') => open.push(')'),
            '\'' | '"' if end == ')' => open.push(letter),
            _ => {}
        }
        if open.is_empty() {
            return Some(opening.len() + at + 1);
        }
        before = letter;
    }
    None
}

/// The variable behind a `$`, what stands for it where it is not set, and how long all this is; 0 where there is none.
pub(super) fn named(after: &str) -> (&str, Option<&str>, usize) {
    let Some(inner) = after.strip_prefix('{') else {
        let is_single = after.starts_with(|c: char| c.is_ascii_digit() || ARGUMENTS.contains(&c));
        let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let end = if is_single {
            1
        } else {
            end.unwrap_or(after.len())
        };
        return (&after[..end], None, end);
    };
    let mut open = 1;
    let end = inner.find(|c| {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        open == 0
    });
    let Some(end) = end else {
        return ("", None, 0);
    };
    let length = end + 2;
    let inner = &inner[..end];
    match inner.split_once(":-").or(inner.split_once('-')) {
        Some((name, default)) => (name, Some(default), length),
        None => (inner, None, length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries as they are written, with `|` between words and quoted parts in `'`.
    fn read(script: &str) -> Vec<String> {
        let shown = |part: &Part| match part.is_quoted {
            true => format!("'{}'", part.text),
            false => part.text.clone(),
        };
        let words = |words: &[Word]| {
            let words = words.iter().map(|word| word.iter().map(shown).collect());
            words.collect::<Vec<String>>().join("|")
        };
        let entries = entries(script).unwrap();
        let shown = entries.iter().map(|entry| match entry {
            Entry::Command(command) => words(command),
            Entry::Array(name, elements) => format!("{name}=[{}]", words(elements)),
            Entry::Open => "(".to_owned(),
            Entry::Close => ")".to_owned(),
        });
        shown.collect()
    }

    #[test]
    fn a_command_ends_where_the_shell_ends_it() {
        let cases: [(&str, &[&str]); 7] = [
            ("a 7|b", &["a|7", "b"]),
            ("a 7&&b||c&d;e |& f", &["a|7", "b", "c", "d", "e", "f"]),
            ("(cd x && a 7)", &["(", "cd|x", "a|7", ")"]),
            ("a '|' \";\" \\& x\\;", &["a|'|'|';'|'&'|x';'"]),
            ("((n=2*(3))) && a", &["'((n=2*(3)))'", "a"]),
            ("a # b", &["a"]),
            ("a#b '#c'", &["a#b|'#c'"]),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn where_output_goes_is_no_word() {
        for line in [
            "a 7 > log",
            "a 7 >log",
            "a 7 >> \"$OUT/a log\" 2>&1 &",
            "a 7 &> log",
            "a 2>/dev/null 7",
            "a 7 >& log",
            "a 7 < in > out",
            "a 7 2>&-",
            "a 7 <<< \"x y\"",
            "> log a 7",
            "a 7 > >(tee log) 2> >(tee \"b c\" >&2)",
        ] {
            assert_eq!(read(line), ["a|7"], "{line}");
        }
        // A number that stands apart is a word, and so is what quotes are around.
        assert_eq!(read("a 7 >log 8"), ["a|7|8"]);
        assert_eq!(read("a '>' x\">\"y"), ["a|'>'|x'>'y"]);
        assert_eq!(read("a <(b c)"), ["a|'<(b c)'"]);
    }

    #[test]
    fn words_have_parts_in_quotes_and_parts_that_ask() {
        assert_eq!(
            read("--a=\"$B c\"'$D'$E \"\" \"\\$x\\y\""),
            ["--a='$B'' c$D'$E|''|'$x\\y'"]
        );
        let entries = entries("\"$B c\"'$D'${E:-x y}").unwrap();
        let [Entry::Command(words)] = &entries[..] else {
            panic!("one command");
        };
        let asked: Vec<bool> = words[0].iter().map(|part| part.is_asked).collect();
        assert_eq!(asked, [true, false, true]);
        assert_eq!(words.len(), 1);
        assert!(is_assignment(&word_of("A_1+=\"b\"")));
        for none in ["\"A\"=b", "$A=b", "1=b", "--a=b", "a"] {
            assert!(!is_assignment(&word_of(none)), "{none}");
        }
    }

    #[test]
    fn elements_of_an_array_may_be_on_several_lines() {
        let script = "declare -a A=( b # why\n  'c d' $E\n)\nA+=(f); g (h)\nB=()";
        let expected = [
            "declare|-a",
            "A=[b|'c d'|$E]",
            "A+=[f]",
            "g",
            "(",
            "h",
            ")",
            "B=[]",
        ];
        assert_eq!(read(script), expected);
    }

    #[test]
    fn the_line_is_told_in_which_a_quote_does_not_end() {
        for line in ["a 'b", "a \"b", "a \"$(b\" c\""] {
            let script = format!("x\n  {line}\ny");
            assert_eq!(entries(&script).err(), Some(line), "{line}");
        }
        assert_eq!(read("a \\"), ["a|"]);
    }
}
