//! Takes Rust source apart into comments, string literals and names of tests. Not a parser: it knows where these begin and end,
//! and nothing else.

/// A part of a source file that a person reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// One line of a `//`, `///` or `//!` comment, without its marker.
    Comment(String),
    /// A string literal, its escapes replaced by spaces; of unit tests, which are the last part of a file.
    Literal { text: String, of_tests: bool },
    /// The name of a function after `#[test]` or `#[tokio::test]`.
    Test(String),
}

/// The pieces of a source file with their line numbers, from 1.
pub(crate) fn pieces(text: &str) -> Vec<(usize, Piece)> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut line = 1;
    // After `#[test]`, and after `#[cfg(test)]`.
    let (mut is_test, mut are_tests) = (false, false);
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let step = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            let comment = rest[..end].trim_start_matches('/').trim_start_matches('!').trim();
            if !comment.is_empty() {
                found.push((line, Piece::Comment(comment.to_owned())));
            }
            end
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw(rest).filter(|_| !is_word(before)) {
            let begin = rest.find('"').map_or(rest.len(), |quote| quote + 1);
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[begin..].find(&close).map_or(rest.len(), |end| begin + end);
            found.push((line, Piece::Literal { text: rest[begin..end].to_owned(), of_tests: are_tests }));
            (end + close.len()).min(rest.len())
        } else if first == '"' {
            let (literal, length) = literal(&rest[1..]);
            found.push((line, Piece::Literal { text: literal, of_tests: are_tests }));
            (1 + length).min(rest.len())
        } else if first == '\'' {
            character(rest)
        } else if rest.starts_with("#[test]") || rest.starts_with("#[tokio::test") {
            is_test = true;
            2
        } else if rest.starts_with("#[cfg(test)]\nmod") {
            are_tests = true;
            1
        } else if is_test && rest.starts_with("fn ") && !is_word(before) {
            let name: String = rest[3..].chars().take_while(|c| is_word(*c)).collect();
            found.push((line, Piece::Test(name)));
            is_test = false;
            3
        } else {
            first.len_utf8()
        };
        before = rest[..step].chars().next_back().unwrap_or(' ');
        line += rest[..step].matches('\n').count();
        rest = &rest[step..];
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The hashes of a raw string that begins here.
fn raw(rest: &str) -> Option<usize> {
    let rest = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// A string literal after its quote, and its length with the closing quote.
fn literal(rest: &str) -> (String, usize) {
    let (mut text, mut escaped) = (String::new(), false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => {
                // An escaped quote stays out; `\n` and the like separate words.
                text.push(' ');
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (text, at + 1),
            _ => text.push(c),
        }
    }
    (text, rest.len())
}

/// The length of a character literal, or of the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => rest[at + 1..].find('\'').map_or(1, |end| at + 1 + end + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[test]
fn comments_literals_and_names_of_tests_are_found() {
    let text = "//! One.\nconst A: &str = \"two \\\"x\\\" //\"; // three\n'\\''; '\"'; fn f<'a>() {}\n#[test]\nfn four() {}\nr#\"five \" x\"#;";
    let literal = |text: &str| Piece::Literal { text: text.to_owned(), of_tests: false };
    assert_eq!(
        pieces(text),
        [
            (1, Piece::Comment("One.".to_owned())),
            (2, literal("two  x  //")),
            (2, Piece::Comment("three".to_owned())),
            (5, Piece::Test("four".to_owned())),
            (6, literal("five \" x")),
        ]
    );
}
