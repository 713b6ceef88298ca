//! JSON as a CNI configuration means it: keys match without case, null is as good as absent, unknown keys are nobody's
//! business, and of two keys with one name the last counts. This is how Go reads the reference plugins' configuration,
//! and users rely on it.
//!
//! Not a general JSON library: parsing is serde_json's, with its limit of 128 levels.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Kind};

/// A JSON value; the members of an object in the order they were written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number that fits.
    Integer(i64),
    /// Any other number.
    Fraction(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(Object),
}

/// The members of a JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object(Vec<(String, Json)>);

impl Object {
    /// Reads one JSON document that is an object.
    ///
    /// # Errors
    /// [`Kind::Decode`] when the bytes are not one JSON object.
    pub(crate) fn parse(bytes: &[u8], what: &str) -> Result<Self, Error> {
        match serde_json::from_slice(bytes) {
            Ok(Json::Object(object)) => Ok(object),
            Ok(_) => Err(Error::new(Kind::Decode, format!("{what} is not a JSON object"))),
            Err(error) => Err(Error::with(Kind::Decode, format!("{what} is not JSON"), error)),
        }
    }

    /// The value of `key`, whatever its case; none when it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        let found = self.0.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value).filter(|value| **value != Json::Null)
    }

    /// All members in the order they were written, as often as they were.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The string at `key`.
    ///
    /// # Errors
    /// [`Kind::Config`] naming the key when something else is there; so do all of the following.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(key, "a string", other)),
        }
    }

    /// The boolean at `key`, false when absent. The strings "true" and "false" are taken too: published examples of
    /// `portIsolation` have them.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn boolean(&self, key: &str) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(false),
            Some(Json::Boolean(value)) => Ok(*value),
            Some(Json::Text(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Json::Text(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(other) => Err(wrong(key, "true or false", other)),
        }
    }

    /// The whole number at `key`.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Integer(number)) => Ok(Some(*number)),
            Some(other) => Err(wrong(key, "a whole number", other)),
        }
    }

    /// The object at `key`; an empty one when absent.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn object(&self, key: &str) -> Result<&Object, Error> {
        static EMPTY: Object = Object(Vec::new());
        match self.get(key) {
            None => Ok(&EMPTY),
            Some(Json::Object(object)) => Ok(object),
            Some(other) => Err(wrong(key, "an object", other)),
        }
    }

    /// The elements of the array at `key`; none when absent.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn list(&self, key: &str) -> Result<&[Json], Error> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Json::List(list)) => Ok(list),
            Some(other) => Err(wrong(key, "an array", other)),
        }
    }

    /// The objects in the array at `key`; nulls among them are left out.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn objects(&self, key: &str) -> Result<Vec<&Object>, Error> {
        let mut objects = Vec::new();
        for element in self.list(key)?.iter().filter(|element| **element != Json::Null) {
            let Json::Object(object) = element else {
                return Err(wrong(key, "an array of objects", element));
            };
            objects.push(object);
        }
        Ok(objects)
    }

    /// The strings in the array at `key`.
    ///
    /// # Errors
    /// See [`Object::text`].
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<String>, Error> {
        let mut texts = Vec::new();
        for element in self.list(key)? {
            let Json::Text(text) = element else {
                return Err(wrong(key, "an array of strings", element));
            };
            texts.push(text.clone());
        }
        Ok(texts)
    }
}

fn wrong(key: &str, wanted: &str, found: &Json) -> Error {
    let found = match found {
        Json::Null => "null",
        Json::Boolean(_) => "a boolean",
        Json::Integer(_) => "a number",
        Json::Fraction(_) => "a fraction or too large a number",
        Json::Text(_) => "a string",
        Json::List(_) => "an array",
        Json::Object(_) => "an object",
    };
    Error::new(Kind::Config, format!("\"{key}\" must be {wanted}, not {found}"))
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        // A value above i64 is too large for every key; its exact value does not matter.
        Ok(i64::try_from(value).map_or(Json::Fraction(f64::INFINITY), Json::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Fraction(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = access.next_element()? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = access.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(Object(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.as_bytes(), "the test").unwrap()
    }

    #[test]
    fn keys_match_without_case_and_the_last_one_counts() {
        let config = object(r#"{"RuntimeConfig": {"MAC": "a"}, "mtu": 1, "MTU": 2}"#);
        assert_eq!(config.object("runtimeConfig").unwrap().text("mac").unwrap(), Some("a"));
        assert_eq!(config.integer("mtu").unwrap(), Some(2));
    }

    #[test]
    fn null_is_absent_and_a_wrong_type_names_its_key() {
        let config = object(r#"{"bridge": null, "mtu": "1500", "a": "true", "big": 18446744073709551615}"#);
        assert_eq!(config.text("bridge").unwrap(), None);
        assert!(config.boolean("a").unwrap());
        assert_eq!(
            config.integer("mtu").unwrap_err().to_string(),
            "\"mtu\" must be a whole number, not a string"
        );
        assert_eq!(config.integer("big").unwrap_err().kind(), Kind::Config);
    }

    #[test]
    fn a_configuration_must_be_an_object() {
        for text in ["", "[]", "1", "{", "{} {}", "\u{feff}{}", &"[".repeat(100_000)] {
            assert_eq!(Object::parse(text.as_bytes(), "the test").unwrap_err().kind(), Kind::Decode);
        }
    }
}
