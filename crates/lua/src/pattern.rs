//! Patterns. Lua 5.2 manual, section 6.4.1.
//!
//! Some patterns take very many steps on short texts. Each step is counted, and the caller's limit ends the search.

/// Parts of a match that are captured. OpenZFS: module/lua/luaconf.h, LUA_MAXCAPTURES
const CAPTURES_MAX: usize = 32;
/// Nested steps of a match. OpenZFS: module/lua/lstrlib.c, MAXCCALLS
const DEPTH_MAX: u32 = 200;
const ESCAPE: u8 = b'%';

/// Why a pattern could not be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PatternError {
    Malformed(String),
    /// The steps are used up.
    Steps,
}

impl From<&str> for PatternError {
    fn from(message: &str) -> Self {
        Self::Malformed(message.to_owned())
    }
}

type Matched<T> = Result<T, PatternError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Open,
    Position,
    Closed(usize),
}

/// A part of the text that was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    Text {
        from: usize,
        to: usize,
    },
    /// A position, counted from 1.
    Position(usize),
}

/// A search for a pattern in a text.
pub(crate) struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, Length)>,
    depth: u32,
    steps: usize,
    steps_max: usize,
}

impl<'a> Matcher<'a> {
    /// At most so many steps are made.
    pub(crate) fn new(text: &'a [u8], pattern: &'a [u8], steps_max: usize) -> Self {
        Self {
            text,
            pattern,
            captures: Vec::new(),
            depth: DEPTH_MAX,
            steps: 0,
            steps_max,
        }
    }

    /// The steps made so far.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Matches at a place of the text; returns the end of the match.
    pub(crate) fn match_at(&mut self, at: usize) -> Matched<Option<usize>> {
        self.captures.clear();
        self.depth = DEPTH_MAX;
        self.run(at, 0)
    }

    /// What was captured, or the whole match when nothing is.
    pub(crate) fn captured(&self, from: usize, to: usize, whole: bool) -> Matched<Vec<Capture>> {
        if self.captures.is_empty() && whole {
            return Ok(vec![Capture::Text { from, to }]);
        }
        (0..self.captures.len())
            .map(|number| self.capture(number))
            .collect()
    }

    fn capture(&self, number: usize) -> Matched<Capture> {
        let (from, length) = self.captures[number];
        match length {
            Length::Open => Err("unfinished capture".into()),
            Length::Position => Ok(Capture::Position(from + 1)),
            Length::Closed(length) => Ok(Capture::Text {
                from,
                to: from + length,
            }),
        }
    }

    fn step(&mut self) -> Matched<()> {
        self.steps += 1;
        if self.steps > self.steps_max {
            return Err(PatternError::Steps);
        }
        Ok(())
    }

    fn run(&mut self, at: usize, item: usize) -> Matched<Option<usize>> {
        if self.depth == 0 {
            return Err("pattern too complex".into());
        }
        self.depth -= 1;
        let result = self.items(at, item);
        self.depth += 1;
        result
    }

    /// Matches the items of the pattern from one on.
    fn items(&mut self, at: usize, item: usize) -> Matched<Option<usize>> {
        let (mut at, mut item) = (at, item);
        loop {
            self.step()?;
            let Some(&first) = self.pattern.get(item) else {
                return Ok(Some(at));
            };
            let second = self.pattern.get(item + 1).copied();
            match (first, second) {
                (b'(', Some(b')')) => return self.open_capture(at, item + 2, Length::Position),
                (b'(', _) => return self.open_capture(at, item + 1, Length::Open),
                (b')', _) => return self.close_capture(at, item + 1),
                (b'$', None) => return Ok((at == self.text.len()).then_some(at)),
                (ESCAPE, Some(b'b')) => match self.balance(at, item + 2)? {
                    Some(end) => (at, item) = (end, item + 4),
                    None => return Ok(None),
                },
                (ESCAPE, Some(b'f')) => {
                    let set = item + 2;
                    if self.pattern.get(set) != Some(&b'[') {
                        return Err("missing '[' after '%f' in pattern".into());
                    }
                    let end = self.item_end(set)?;
                    let before = at.checked_sub(1).map_or(0, |before| self.text[before]);
                    let here = self.text.get(at).copied().unwrap_or(0);
                    if self.in_set(before, set, end - 1) || !self.in_set(here, set, end - 1) {
                        return Ok(None);
                    }
                    item = end;
                }
                (ESCAPE, Some(digit @ b'0'..=b'9')) => match self.back_reference(at, digit)? {
                    Some(end) => (at, item) = (end, item + 2),
                    None => return Ok(None),
                },
                _ => match self.single_item(at, item)? {
                    Ok(next) => (at, item) = next,
                    Err(result) => return Ok(result),
                },
            }
        }
    }

    /// Matches an item with its repetition: where to go on, or the result.
    fn single_item(
        &mut self,
        at: usize,
        item: usize,
    ) -> Matched<Result<(usize, usize), Option<usize>>> {
        let end = self.item_end(item)?;
        let fits = self.fits(at, item, end);
        Ok(match self.pattern.get(end) {
            Some(b'?') => {
                if fits && let Some(result) = self.run(at + 1, end + 1)? {
                    return Ok(Err(Some(result)));
                }
                Ok((at, end + 1))
            }
            Some(b'*') => Err(self.longest(at, item, end)?),
            Some(b'+') if fits => Err(self.longest(at + 1, item, end)?),
            Some(b'-') => Err(self.shortest(at, item, end)?),
            Some(b'+') => Err(None),
            _ if fits => Ok((at + 1, end)),
            _ => Err(None),
        })
    }

    fn longest(&mut self, at: usize, item: usize, end: usize) -> Matched<Option<usize>> {
        let mut count = 0;
        while self.fits(at + count, item, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(result) = self.run(at + count, end + 1)? {
                return Ok(Some(result));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn shortest(&mut self, at: usize, item: usize, end: usize) -> Matched<Option<usize>> {
        let mut at = at;
        loop {
            if let Some(result) = self.run(at, end + 1)? {
                return Ok(Some(result));
            }
            if !self.fits(at, item, end) {
                return Ok(None);
            }
            self.step()?;
            at += 1;
        }
    }

    fn open_capture(&mut self, at: usize, item: usize, length: Length) -> Matched<Option<usize>> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err("too many captures".into());
        }
        self.captures.push((at, length));
        let number = self.captures.len() - 1;
        let result = self.run(at, item)?;
        if result.is_none() {
            self.captures.truncate(number);
        }
        Ok(result)
    }

    fn close_capture(&mut self, at: usize, item: usize) -> Matched<Option<usize>> {
        let open = self
            .captures
            .iter()
            .rposition(|(_, length)| *length == Length::Open);
        let Some(open) = open else {
            return Err("invalid pattern capture".into());
        };
        self.captures[open].1 = Length::Closed(at - self.captures[open].0);
        let result = self.run(at, item)?;
        if result.is_none() {
            self.captures[open].1 = Length::Open;
        }
        Ok(result)
    }

    fn balance(&mut self, at: usize, item: usize) -> Matched<Option<usize>> {
        let (Some(&open), Some(&close)) = (self.pattern.get(item), self.pattern.get(item + 1))
        else {
            return Err("malformed pattern (missing arguments to '%b')".into());
        };
        if self.text.get(at) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for (offset, &byte) in self.text[at + 1..].iter().enumerate() {
            self.steps += 1;
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + offset + 2));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    fn back_reference(&mut self, at: usize, digit: u8) -> Matched<Option<usize>> {
        let number = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = number.and_then(|number| self.captures.get(number));
        let Some(&(from, Length::Closed(length))) = capture else {
            let shown = i64::from(digit) - i64::from(b'0');
            return Err(PatternError::Malformed(format!(
                "invalid capture index %{shown}"
            )));
        };
        self.steps += length / 64;
        let captured = &self.text[from..from + length];
        Ok(self.text[at..].starts_with(captured).then_some(at + length))
    }

    /// The end of an item: a byte, a class or a set.
    fn item_end(&self, item: usize) -> Matched<usize> {
        match self.pattern[item] {
            ESCAPE => {
                if item + 1 >= self.pattern.len() {
                    return Err("malformed pattern (ends with '%')".into());
                }
                Ok(item + 2)
            }
            b'[' => {
                let mut at = item + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A bracket that closes is an ordinary byte where a set begins.
                loop {
                    match self.pattern.get(at) {
                        None => return Err("malformed pattern (missing ']')".into()),
                        Some(&ESCAPE) => at += 2,
                        Some(_) => at += 1,
                    }
                    if self.pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(item + 1),
        }
    }

    fn fits(&self, at: usize, item: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else {
            return false;
        };
        match self.pattern[item] {
            b'.' => true,
            ESCAPE => in_class(byte, self.pattern[item + 1]),
            b'[' => self.in_set(byte, item, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set between two brackets.
    fn in_set(&self, byte: u8, open: usize, close: usize) -> bool {
        let mut at = open + 1;
        let inverted = self.pattern[at] == b'^';
        at += usize::from(inverted);
        while at < close {
            if self.pattern[at] == ESCAPE {
                if in_class(byte, self.pattern[at + 1]) {
                    return !inverted;
                }
                at += 2;
            } else if self.pattern[at + 1] == b'-' && at + 2 < close {
                if (self.pattern[at]..=self.pattern[at + 2]).contains(&byte) {
                    return !inverted;
                }
                at += 3;
            } else {
                if self.pattern[at] == byte {
                    return !inverted;
                }
                at += 1;
            }
        }
        inverted
    }
}

fn in_class(byte: u8, class: u8) -> bool {
    let found = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => crate::number::is_space(byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        _ => return class == byte,
    };
    found != class.is_ascii_uppercase()
}
