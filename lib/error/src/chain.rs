//! An error and its sources as text. Not here: where the text goes.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;

/// `error` and every error below it, outermost first. An error that an [`io::Error`] carries comes out as itself.
pub fn below<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        // The source of an io::Error is the source of the error it carries, not that error.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &'a (dyn StdError + 'static)),
            None => error.source(),
        }
    })
}

/// The messages of `error` and its sources on one line, for logs and protocols: joined by `: `, without a message that the
/// text before it ends with already, control characters and line breaks escaped (they may come from other hosts).
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    into_escaped(joined(error), char::is_control)
}

/// The same for a terminal or a file: line breaks stay.
pub fn text(error: &(dyn StdError + 'static)) -> String {
    into_escaped(joined(error), |c| c.is_control() && c != '\n')
}

/// [`chain`] without the first message; empty if `error` has no source.
pub fn details(error: &(dyn StdError + 'static)) -> String {
    error.source().map(chain).unwrap_or_default()
}

/// `text` with every control character, line breaks included, as Rust writes it in a literal.
pub fn escape(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        false => Cow::Borrowed(text),
        true => Cow::Owned(escaped(text, char::is_control)),
    }
}

fn joined(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        // Some libraries repeat their source in their own message.
        if !text.ends_with(&message) {
            let _infallible = write!(text, ": {message}");
        }
        next = cause.source();
    }
    text
}

fn into_escaped(text: String, is_raw: fn(char) -> bool) -> String {
    match text.contains(is_raw) {
        false => text,
        true => escaped(&text, is_raw),
    }
}

fn escaped(text: &str, is_raw: fn(char) -> bool) -> String {
    text.chars().fold(String::with_capacity(text.len() + 8), |mut shown, c| {
        match is_raw(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

#[cfg(test)]
mod tests {
    use crate::Error;

    use super::*;

    fn error(message: &str) -> Error<()> {
        Error::new((), message)
    }

    #[test]
    fn a_message_that_the_text_ends_with_is_dropped() {
        let nested = Error::with((), "a", Error::with((), "b", error("c")));
        assert_eq!(chain(&nested), "a: b: c");
        assert_eq!(chain(&Error::with((), "a: b", error("b"))), "a: b");
        assert_eq!(chain(&Error::with((), "a", error(""))), "a");
        assert_eq!(details(&Error::with((), "a", error("b\r"))), "b\\r");
    }

    #[test]
    fn control_characters_are_escaped() {
        let hostile = error("é\u{1b}[2J\0\nb\u{85}");
        assert_eq!(chain(&hostile), "é\\u{1b}[2J\\u{0}\\nb\\u{85}");
        assert_eq!(text(&hostile), "é\\u{1b}[2J\\u{0}\nb\\u{85}");
        assert_eq!(escape("a\tb"), "a\\tb");
        assert!(matches!(escape("é"), Cow::Borrowed("é")));
    }
}
