//! Tokens of a program.
//!
//! Numbers are integers of 64 bits and wrap around: `1.5` is malformed, and a leading zero means octal, as in OpenZFS's channel
//! programs. Reference: Lua 5.2 manual, section 3.1; OpenZFS: module/lua/lcompat.c, lcompat_strtoll (numbers).

use crate::number;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Keyword(Keyword),
    /// An operator or a sign.
    Sign(&'static str),
    Name(Vec<u8>),
    String(Vec<u8>),
    Number(i64),
    End,
}

macro_rules! keywords {
    ($($name:ident $text:literal),* $(,)?) => {
        /// A reserved word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Keyword { $($name),* }

        impl Keyword {
            fn of(text: &[u8]) -> Option<Self> {
                match text { $(text if text == $text.as_bytes() => Some(Self::$name),)* _ => None }
            }

            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

keywords!(
    And "and", Break "break", Do "do", Else "else", Elseif "elseif", End "end", False "false", For "for", Function "function",
    Goto "goto", If "if", In "in", Local "local", Nil "nil", Not "not", Or "or", Repeat "repeat", Return "return", Then "then",
    True "true", Until "until", While "while",
);

/// What is wrong with the text of a program; the message ends with `near ...` where a token is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) line: u32,
    pub(crate) message: Vec<u8>,
}

pub(crate) type Lexed<T> = Result<T, SyntaxError>;

/// Reads tokens from the text.
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
    /// Where the token read last began.
    start: usize,
}

const SIGNS: [&str; 28] = [
    "...", "..", "==", "~=", "<=", ">=", "::", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=",
    "(", ")", "{", "}", "[", "]", ";", ":", ",", ".", "\0",
];

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let mut lexer = Self {
            text,
            at: 0,
            line: 1,
            start: 0,
        };
        // A first line that begins with `#` names an interpreter.
        if lexer.peek() == Some(b'#') {
            while lexer.peek().is_some_and(|byte| byte != b'\n') {
                lexer.at += 1;
            }
        }
        lexer
    }

    /// The line of the next byte.
    pub(crate) fn line(&self) -> u32 {
        self.line
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn bump(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Steps over the end of a line of one or two bytes.
    fn newline(&mut self) {
        let first = self.bump();
        if let (Some(first), Some(second)) = (first, self.peek())
            && matches!(second, b'\n' | b'\r')
            && first != second
        {
            self.at += 1;
        }
        self.line += 1;
    }

    fn error(&self, message: &str, near: &[u8]) -> SyntaxError {
        let mut text = message.as_bytes().to_vec();
        text.extend_from_slice(b" near '");
        text.extend_from_slice(near);
        text.push(b'\'');
        SyntaxError {
            line: self.line,
            message: text,
        }
    }

    fn error_here(&self, message: &str) -> SyntaxError {
        let end = self.at.min(self.text.len());
        self.error(message, &self.text[self.start..end])
    }

    fn error_at_end(&self, message: &str) -> SyntaxError {
        SyntaxError {
            line: self.line,
            message: format!("{message} near <eof>").into_bytes(),
        }
    }

    /// Reads the next token.
    pub(crate) fn next(&mut self) -> Lexed<Token> {
        self.skip_space()?;
        self.start = self.at;
        let Some(byte) = self.peek() else {
            return Ok(Token::End);
        };
        match byte {
            b'"' | b'\'' => self.short_string(byte),
            b'[' if self.long_level().is_some() => {
                let level = self.long_level().expect("it was seen just now");
                Ok(Token::String(self.long_text(level, "string")?))
            }
            b'0'..=b'9' => self.number(),
            b'.' if self.peek_at(1).is_some_and(|next| next.is_ascii_digit()) => self.number(),
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                while self.peek().is_some_and(is_name) {
                    self.at += 1;
                }
                let name = &self.text[self.start..self.at];
                Ok(Keyword::of(name).map_or_else(|| Token::Name(name.to_vec()), Token::Keyword))
            }
            _ => self.sign(byte),
        }
    }

    fn sign(&mut self, byte: u8) -> Lexed<Token> {
        let rest = &self.text[self.at..];
        if let Some(sign) = SIGNS
            .iter()
            .find(|sign| byte != 0 && rest.starts_with(sign.as_bytes()))
        {
            self.at += sign.len();
            return Ok(Token::Sign(sign));
        }
        if byte == b'[' && self.peek_at(1) == Some(b'=') {
            return Err(self.error("invalid long string delimiter", b"["));
        }
        let shown = match byte {
            b'~' | b'!' | b'@' | b'$' | b'&' | b'|' | b'`' | b'?' | b'\\' | b'\'' => vec![byte],
            byte if byte.is_ascii_graphic() => vec![byte],
            byte => format!("char({byte})").into_bytes(),
        };
        Err(SyntaxError {
            line: self.line,
            message: [b"unexpected symbol near '".as_slice(), &shown, b"'"].concat(),
        })
    }

    fn skip_space(&mut self) -> Lexed<()> {
        loop {
            match self.peek() {
                Some(b'\n' | b'\r') => self.newline(),
                Some(b' ' | b'\t' | 0x0b | 0x0c) => self.at += 1,
                Some(b'-') if self.peek_at(1) == Some(b'-') => {
                    self.start = self.at;
                    self.at += 2;
                    if self.peek() == Some(b'[')
                        && let Some(level) = self.long_level()
                    {
                        self.long_text(level, "comment")?;
                    } else {
                        while self
                            .peek()
                            .is_some_and(|byte| byte != b'\n' && byte != b'\r')
                        {
                            self.at += 1;
                        }
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// The level of a long bracket that opens here: the number of `=` in it.
    fn long_level(&self) -> Option<usize> {
        let level = self.text[self.at + 1..]
            .iter()
            .take_while(|&&byte| byte == b'=')
            .count();
        (self.peek_at(1 + level) == Some(b'[')).then_some(level)
    }

    fn long_text(&mut self, level: usize, what: &str) -> Lexed<Vec<u8>> {
        self.at += level + 2;
        if matches!(self.peek(), Some(b'\n' | b'\r')) {
            self.newline();
        }
        let close = [b"]".as_slice(), &vec![b'='; level], b"]"].concat();
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error_at_end(&format!("unfinished long {what}"))),
                Some(b']') if self.text[self.at..].starts_with(&close) => {
                    self.at += close.len();
                    return Ok(text);
                }
                Some(b'\n' | b'\r') => {
                    self.newline();
                    text.push(b'\n');
                }
                Some(byte) => {
                    self.at += 1;
                    text.push(byte);
                }
            }
        }
    }

    fn short_string(&mut self, quote: u8) -> Lexed<Token> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error_at_end("unfinished string")),
                Some(b'\n' | b'\r') => return Err(self.error_here("unfinished string")),
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut text)?;
                }
                Some(byte) => {
                    self.at += 1;
                    if byte == quote {
                        return Ok(Token::String(text));
                    }
                    text.push(byte);
                }
            }
        }
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Lexed<()> {
        let Some(byte) = self.peek() else {
            return Err(self.error_at_end("unfinished string"));
        };
        let plain = match byte {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'\\' | b'"' | b'\'' => byte,
            b'\n' | b'\r' => {
                self.newline();
                text.push(b'\n');
                return Ok(());
            }
            b'x' => {
                self.at += 1;
                let mut value = 0;
                for _ in 0..2 {
                    let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
                    self.at += usize::from(self.peek().is_some());
                    let digit =
                        digit.ok_or_else(|| self.error_here("hexadecimal digit expected"))?;
                    value = value * 16 + digit;
                }
                text.push(u8::try_from(value).expect("two hexadecimal digits are a byte"));
                return Ok(());
            }
            b'z' => {
                self.at += 1;
                while let Some(byte) = self.peek() {
                    match byte {
                        b'\n' | b'\r' => self.newline(),
                        b' ' | b'\t' | 0x0b | 0x0c => self.at += 1,
                        _ => break,
                    }
                }
                return Ok(());
            }
            b'0'..=b'9' => return self.decimal_escape(text),
            _ => {
                self.at += 1;
                return Err(self.error_here("invalid escape sequence"));
            }
        };
        self.at += 1;
        text.push(plain);
        Ok(())
    }

    fn decimal_escape(&mut self, text: &mut Vec<u8>) -> Lexed<()> {
        let mut value = 0_u32;
        for _ in 0..3 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(10)) else {
                break;
            };
            self.at += 1;
            value = value * 10 + digit;
        }
        let value = u8::try_from(value).map_err(|_| self.error_here("decimal escape too large"))?;
        text.push(value);
        Ok(())
    }

    fn number(&mut self) -> Lexed<Token> {
        let hex = self.peek() == Some(b'0') && matches!(self.peek_at(1), Some(b'x' | b'X'));
        while let Some(byte) = self.peek() {
            let sign_of_exponent = matches!(byte, b'+' | b'-')
                && matches!(
                    (hex, self.text[self.at - 1]),
                    (false, b'e' | b'E') | (true, b'p' | b'P')
                )
                && self.at > self.start;
            if !(is_name(byte) || byte == b'.' || sign_of_exponent) {
                break;
            }
            self.at += 1;
        }
        let digits = &self.text[self.start..self.at];
        let value = number::parse(digits).ok_or_else(|| self.error("malformed number", digits))?;
        Ok(Token::Number(value))
    }

    /// The text of the token read last, for messages.
    pub(crate) fn token_text(&self) -> &[u8] {
        &self.text[self.start..self.at]
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
