//! From the text of a program to its instructions, in one pass.
//!
//! Nested text is limited as OpenZFS limits it, so that neither text nor expressions can exhaust this thread's stack.

mod emit;
mod expression;
mod scope;
mod statement;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::code::{Constant, Function, Op, REGISTERS_MAX, UpvalueSource};
use crate::heap::Heap;
use crate::lexer::{Keyword, Lexed, Lexer, SyntaxError, Token};
use crate::vm::{CHUNK, NATIVE_CALLS_MAX};

use scope::{ActiveLocal, Block, Goto, Label};

/// The name of the variable that holds the global ones.
pub(super) const ENVIRONMENT: &[u8] = b"_ENV";

/// Compiles a program. Its one upvalue is the table of global variables.
///
/// # Errors
/// The message, with its line.
pub(crate) fn compile(text: &[u8], heap: &mut Heap) -> Result<Rc<Function>, Vec<u8>> {
    let mut compiler = Compiler {
        lexer: Lexer::new(text),
        token: Token::End,
        token_line: 1,
        token_text: Vec::new(),
        ahead: None,
        last_line: 1,
        heap,
        functions: Vec::new(),
        depth: 0,
    };
    compiler.program().map_err(|error| {
        let place = format!("{CHUNK}:{}: ", error.line);
        [place.as_bytes(), &error.message].concat()
    })
}

/// A function that is being compiled.
#[derive(Default)]
struct FunctionState {
    code: Function,
    constants: BTreeMap<Constant, usize>,
    active: Vec<ActiveLocal>,
    blocks: Vec<Block>,
    labels: Vec<Label>,
    gotos: Vec<Goto>,
    /// The first register that is not in use.
    free: usize,
}

struct Compiler<'a> {
    lexer: Lexer<'a>,
    token: Token,
    token_line: u32,
    token_text: Vec<u8>,
    /// A token that was looked at before its turn, with its line and text.
    ahead: Option<(Token, u32, Vec<u8>)>,
    /// The line of the token before.
    last_line: u32,
    heap: &'a mut Heap,
    functions: Vec<FunctionState>,
    depth: u32,
}

impl Compiler<'_> {
    fn program(&mut self) -> Lexed<Rc<Function>> {
        self.functions.push(FunctionState::default());
        self.state().code.is_vararg = true;
        self.state().code.upvalues.push(UpvalueSource {
            name: ENVIRONMENT.into(),
            is_local: true,
            index: 0,
        });
        self.open_block(false);
        self.advance()?;
        self.statements()?;
        if self.token != Token::End {
            return Err(self.error_expected("<eof>"));
        }
        self.end_function()
    }

    /// Ends the innermost function.
    fn end_function(&mut self) -> Lexed<Rc<Function>> {
        self.emit(Op::Return { first: 0, count: 0 });
        self.close_block()?;
        let state = self.functions.pop().expect("a function is being compiled");
        let mut code = state.code;
        code.registers = code.registers.max(2);
        assert!(
            code.registers <= REGISTERS_MAX + 2,
            "registers were counted"
        );
        assert_eq!(
            code.code.len(),
            code.lines.len(),
            "each instruction has a line"
        );
        Ok(Rc::new(code))
    }

    fn state(&mut self) -> &mut FunctionState {
        self.functions
            .last_mut()
            .expect("a function is being compiled")
    }

    // Tokens.

    fn advance(&mut self) -> Lexed<()> {
        self.last_line = self.token_line;
        (self.token, self.token_line, self.token_text) = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.read()?,
        };
        Ok(())
    }

    fn read(&mut self) -> Lexed<(Token, u32, Vec<u8>)> {
        let token = self.lexer.next()?;
        Ok((token, self.lexer.line(), self.lexer.token_text().to_vec()))
    }

    fn look_ahead(&mut self) -> Lexed<&Token> {
        if self.ahead.is_none() {
            self.ahead = Some(self.read()?);
        }
        Ok(&self.ahead.as_ref().expect("it was read just now").0)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(found) if found == sign)
    }

    fn is_keyword(&self, keyword: Keyword) -> bool {
        self.token == Token::Keyword(keyword)
    }

    fn accept_sign(&mut self, sign: &str) -> Lexed<bool> {
        let found = self.is_sign(sign);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn accept_keyword(&mut self, keyword: Keyword) -> Lexed<bool> {
        let found = self.is_keyword(keyword);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect_sign(&mut self, sign: &str) -> Lexed<()> {
        if self.accept_sign(sign)? {
            return Ok(());
        }
        Err(self.error_expected(&format!("'{sign}'")))
    }

    fn expect_keyword(&mut self, keyword: Keyword) -> Lexed<()> {
        if self.accept_keyword(keyword)? {
            return Ok(());
        }
        Err(self.error_expected(&format!("'{}'", keyword.text())))
    }

    /// What closes something that was opened on a line.
    fn expect_match(&mut self, close: &Token, open: &str, line: u32) -> Lexed<()> {
        if self.token == *close {
            return self.advance();
        }
        let close = match close {
            Token::Keyword(keyword) => keyword.text(),
            Token::Sign(sign) => sign,
            _ => unreachable!("blocks end with signs and words"),
        };
        if self.token_line == line {
            return Err(self.error_expected(&format!("'{close}'")));
        }
        Err(self.error_near(&format!(
            "'{close}' expected (to close '{open}' at line {line})"
        )))
    }

    fn name(&mut self) -> Lexed<Vec<u8>> {
        let Token::Name(name) = &self.token else {
            return Err(self.error_expected("<name>"));
        };
        let name = name.clone();
        self.advance()?;
        Ok(name)
    }

    // Errors.

    fn error_near(&self, message: &str) -> SyntaxError {
        let near = match self.token {
            Token::End => b"<eof>".to_vec(),
            _ => [b"'".as_slice(), &self.token_text, b"'"].concat(),
        };
        SyntaxError {
            line: self.token_line,
            message: [message.as_bytes(), b" near ", &near].concat(),
        }
    }

    fn error_expected(&self, what: &str) -> SyntaxError {
        self.error_near(&format!("{what} expected"))
    }

    fn check_limit(&self, count: usize, limit: usize, what: &str) -> Lexed<()> {
        if count <= limit {
            return Ok(());
        }
        let place = match self.functions.last().map_or(0, |state| state.code.line) {
            0 => "main function".to_owned(),
            line => format!("function at line {line}"),
        };
        Err(self.error_near(&format!("too many {what} (limit is {limit}) in {place}")))
    }

    /// Steps into a nested statement or expression.
    fn enter_level(&mut self) -> Lexed<()> {
        self.depth += 1;
        self.check_limit(self.depth as usize, NATIVE_CALLS_MAX as usize, "C levels")
    }

    fn leave_level(&mut self) {
        self.depth -= 1;
    }
}
