//! Arguments of the functions that programs call: by position, or in a table with some by name.
//!
//! OpenZFS: module/zfs/zcp.c, zcp_parse_args (rules, texts).

use lua::{CallError, Data};

/// What a function takes: the names and types of its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub(super) name: &'static str,
    pub(super) positional: &'static [(&'static str, &'static str)],
    /// Arguments that can be left out, by name.
    pub(super) named: &'static [(&'static str, &'static str)],
}

/// A message with the list of arguments may be so long.
const MESSAGE_BYTES_MAX: usize = 512;

impl Signature {
    /// Puts the arguments of a call into the order of the signature, those by name last; ones that are left out are nil.
    ///
    /// # Errors
    /// They are not what the function takes.
    pub(super) fn read(&self, arguments: Vec<Data>) -> Result<Vec<Data>, CallError> {
        match arguments.as_slice() {
            [Data::Table(pairs)] => self.by_name(pairs.clone()),
            _ => self.by_position(arguments),
        }
    }

    fn by_position(&self, arguments: Vec<Data>) -> Result<Vec<Data>, CallError> {
        for (index, (_, expected)) in self.positional.iter().enumerate() {
            self.check_position(index, arguments.get(index), expected)?;
        }
        if arguments.len() > self.positional.len() {
            return Err(self.error("too many positional arguments"));
        }
        let mut arguments = arguments;
        arguments.resize(self.positional.len() + self.named.len(), Data::Nil);
        Ok(arguments)
    }

    fn by_name(&self, pairs: Vec<(Data, Data)>) -> Result<Vec<Data>, CallError> {
        let mut pairs = pairs;
        let mut take = |key: &Data| {
            let at = pairs.iter().position(|(known, _)| known == key)?;
            Some(pairs.remove(at).1)
        };
        let mut arguments = Vec::new();
        for (number, (_, expected)) in (1..).zip(self.positional) {
            let value = take(&Data::Int(number));
            self.check_position(arguments.len(), value.as_ref(), expected)?;
            arguments.extend(value);
        }
        for (name, expected) in self.named {
            let value = take(&Data::text(name)).unwrap_or(Data::Nil);
            let found = value.type_name();
            if value != Data::Nil && found != *expected {
                let message =
                    format!("kwarg '{name}' wrong type (is '{found}', expected '{expected}')");
                return Err(self.error(&message));
            }
            arguments.push(value);
        }
        match pairs.first() {
            None => Ok(arguments),
            Some((Data::Int(1..), _)) => Err(self.error("too many positional arguments")),
            Some((Data::String(name), _)) => {
                let name = String::from_utf8_lossy(name);
                Err(self.error(&format!("invalid kwarg '{name}'")))
            }
            Some(_) => Err(self.error("kwarg keys must be strings")),
        }
    }

    fn check_position(
        &self,
        index: usize,
        value: Option<&Data>,
        expected: &str,
    ) -> Result<(), CallError> {
        let Some(value) = value else {
            return Err(self.error("too few arguments"));
        };
        let found = value.type_name();
        if found == expected {
            return Ok(());
        }
        let number = index + 1;
        Err(self.error(&format!(
            "arg {number} wrong type (is '{found}', expected '{expected}')"
        )))
    }

    /// A message that ends with what the function takes.
    fn error(&self, message: &str) -> CallError {
        let positional = self
            .positional
            .iter()
            .map(|(name, kind)| format!("<{name}({kind})>"));
        let named = self
            .named
            .iter()
            .map(|(name, kind)| format!("{name}=({kind})"));
        let list: Vec<String> = positional.chain(named).collect();
        let full = format!("{message}: {}{{{}}}", self.name, list.join(", "));
        CallError::Error(if full.len() < MESSAGE_BYTES_MAX {
            full
        } else {
            message.to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESTROY: Signature = Signature {
        name: "destroy",
        positional: &[("filesystem | snapshot", "string")],
        named: &[("defer", "boolean")],
    };

    fn error(arguments: Vec<Data>, expect: &str) {
        let full = format!("{expect}: destroy{{<filesystem | snapshot(string)>, defer=(boolean)}}");
        assert_eq!(DESTROY.read(arguments), Err(CallError::Error(full)));
    }

    #[test]
    fn arguments_are_given_by_position_or_in_a_table() {
        let foo = || Data::text("foo");
        assert_eq!(DESTROY.read(vec![foo()]), Ok(vec![foo(), Data::Nil]));
        let table = Data::Table(vec![
            (Data::text("defer"), Data::Bool(true)),
            (Data::Int(1), foo()),
        ]);
        assert_eq!(DESTROY.read(vec![table]), Ok(vec![foo(), Data::Bool(true)]));
    }

    #[test]
    fn other_arguments_are_refused_with_what_is_taken() {
        let foo = || Data::text("foo");
        error(
            vec![foo(), Data::text("bar")],
            "too many positional arguments",
        );
        error(
            vec![Data::Int(12345)],
            "arg 1 wrong type (is 'number', expected 'string')",
        );
        error(vec![], "too few arguments");
        let table = |pairs: &[(Data, Data)]| vec![Data::Table(pairs.to_vec())];
        let one = (Data::Int(1), foo());
        let defer = |value| (Data::text("defer"), value);
        error(
            table(&[one.clone(), (Data::text("bar"), Data::Bool(true))]),
            "invalid kwarg 'bar'",
        );
        error(
            table(&[one.clone(), defer(Data::Int(1))]),
            "kwarg 'defer' wrong type (is 'number', expected 'boolean')",
        );
        error(
            table(&[one.clone(), (Data::Int(2), Data::Int(1))]),
            "too many positional arguments",
        );
        error(
            table(&[one, (Data::Bool(true), Data::Int(1))]),
            "kwarg keys must be strings",
        );
        error(table(&[defer(Data::Bool(true))]), "too few arguments");
    }
}
