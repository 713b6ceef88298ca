//! XML, written only: elements with attributes, texts and children, escaped where they are written.
//!
//! Not here: reading, names that are not in the program's text.

/// An element.
#[derive(Clone, Debug)]
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    text: Option<String>,
    children: Vec<Element>,
}

impl Element {
    /// An empty element.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), text: None, children: Vec::new() }
    }

    /// With an attribute.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts are written where they are given")]
    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// With an attribute, if there is a value.
    #[must_use]
    pub(super) fn with_some(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// With a text instead of children.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts are written where they are given")]
    pub(super) fn text(mut self, text: impl ToString) -> Self {
        self.text = Some(text.to_string());
        self
    }

    /// With children after those it has: one, an `Option`, or many.
    #[must_use]
    pub(super) fn child(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.children.extend(children);
        self
    }

    /// The element as a document of its own, two spaces for each level.
    pub(super) fn document(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut String, level: usize) {
        let indent = "  ".repeat(level);
        out.push_str(&indent);
        out.push('<');
        out.push_str(self.name);
        for (name, value) in &self.attributes {
            out.push(' ');
            out.push_str(name);
            out.push_str("='");
            escape(value, out);
            out.push('\'');
        }
        match &self.text {
            Some(text) => {
                out.push('>');
                escape(text, out);
            }
            None if self.children.is_empty() => {
                out.push_str("/>\n");
                return;
            }
            None => {
                out.push_str(">\n");
                for child in &self.children {
                    child.write(out, level + 1);
                }
                out.push_str(&indent);
            }
        }
        out.push_str("</");
        out.push_str(self.name);
        out.push_str(">\n");
    }
}

impl IntoIterator for Element {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

/// Characters that XML 1.0 cannot hold become U+FFFD; launch documents have none of them.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push_str(&format!("&#{};", u32::from(c))),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let element = Element::new("a")
            .with("b", "'><c/>&\"\n\u{1}")
            .with_some("d", None::<u32>)
            .with_some("e", Some(1))
            .child(Element::new("f").text("</f>&amp;"))
            .child([Element::new("g"), Element::new("h")])
            .child(None);
        let wanted = "<a b='&apos;&gt;&lt;c/&gt;&amp;&quot;&#10;\u{fffd}' e='1'>\n  <f>&lt;/f&gt;&amp;amp;</f>\n  <g/>\n  <h/>\n</a>\n";
        assert_eq!(element.document(), wanted);
    }
}
