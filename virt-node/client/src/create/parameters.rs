//! Parameters `key:value,…` of one flag. Pure.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result, usage};

/// Parameters of one flag.
pub(super) struct Parameters<'a> {
    flag: &'static str,
    text: &'a str,
    left: BTreeMap<&'a str, &'a str>,
}

impl<'a> Parameters<'a> {
    pub(super) fn read(flag: &'static str, text: &'a str) -> Result<Self> {
        let mut left = BTreeMap::new();
        for pair in text.split(',') {
            let Some((key, value)) =
                pair.split_once(':').filter(|(key, value)| !key.is_empty() && !value.is_empty())
            else {
                return usage(format!("--{flag} {text:?}: {pair:?} is not KEY:VALUE"));
            };
            if left.insert(key, value).is_some() {
                return usage(format!("--{flag} {text:?}: {key} is given twice"));
            }
        }
        Ok(Self { flag, text, left })
    }

    pub(super) fn wrong(&self, what: &str) -> Error {
        Error::new(Kind::Usage, format!("--{} {:?}: {what}", self.flag, self.text))
    }

    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        self.left.remove(key)
    }

    pub(super) fn need(&mut self, key: &str) -> Result<&'a str> {
        self.take(key).ok_or_else(|| self.wrong(&format!("{key} is missing")))
    }

    pub(super) fn boot_order(&mut self) -> Result<Option<u32>> {
        match self.take("bootorder").map(str::parse) {
            None => Ok(None),
            Some(Ok(order @ 1..)) => Ok(Some(order)),
            Some(_) => Err(self.wrong("bootorder is not a number of 1 or more")),
        }
    }

    pub(super) fn end(&self) -> Result<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(key) => Err(self.wrong(&format!("{key} is not a parameter of this flag"))),
        }
    }
}
