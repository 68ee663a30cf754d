//! Expressions.

use crate::code::{Comparison, Op, Operand};
use crate::lexer::{Keyword, Lexed, Token};
use crate::number::{self, Arith};

use super::Compiler;
use super::emit::{Expression, Location, small};

/// Elements of a table that are stored at once. OpenZFS: module/lua/lopcodes.h, LFIELDS_PER_FLUSH
const LIST_BATCH: usize = 50;

/// How tightly unary operators bind.
const UNARY_PRIORITY: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binary {
    Arith(Arith),
    Concat,
    Compare {
        comparison: Comparison,
        expect: bool,
        swap: bool,
    },
    And,
    Or,
}

impl Binary {
    /// The operator, with how tightly it binds to the left and to the right. Lua 5.2 manual, section 3.4.7
    fn of(token: &Token) -> Option<(Self, u8, u8)> {
        let compare = |comparison, expect, swap| {
            let operator = Self::Compare {
                comparison,
                expect,
                swap,
            };
            (operator, 3, 3)
        };
        Some(match token {
            Token::Keyword(Keyword::Or) => (Self::Or, 1, 1),
            Token::Keyword(Keyword::And) => (Self::And, 2, 2),
            Token::Sign(sign) => match *sign {
                "<" => compare(Comparison::Less, true, false),
                ">" => compare(Comparison::Less, true, true),
                "<=" => compare(Comparison::LessEqual, true, false),
                ">=" => compare(Comparison::LessEqual, true, true),
                "==" => compare(Comparison::Equal, true, false),
                "~=" => compare(Comparison::Equal, false, false),
                ".." => (Self::Concat, 5, 4),
                "+" => (Self::Arith(Arith::Add), 6, 6),
                "-" => (Self::Arith(Arith::Sub), 6, 6),
                "*" => (Self::Arith(Arith::Mul), 7, 7),
                "/" => (Self::Arith(Arith::Div), 7, 7),
                "%" => (Self::Arith(Arith::Mod), 7, 7),
                "^" => (Self::Arith(Arith::Pow), 10, 9),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// A table that is being made.
struct Constructor {
    table: u8,
    /// The element that is not in a register yet.
    element: Option<Expression>,
    /// Elements in registers that are not stored yet.
    pending: usize,
    stored: usize,
}

impl Compiler<'_> {
    pub(super) fn expression(&mut self) -> Lexed<Expression> {
        self.subexpression(0)
    }

    /// An expression whose operators bind more tightly than `limit`.
    fn subexpression(&mut self, limit: u8) -> Lexed<Expression> {
        self.enter_level()?;
        let line = self.token_line;
        let unary = match &self.token {
            Token::Keyword(Keyword::Not) => Some("not"),
            Token::Sign("-") => Some("-"),
            Token::Sign("#") => Some("#"),
            _ => None,
        };
        let mut left = if let Some(operator) = unary {
            self.advance()?;
            let operand = self.subexpression(UNARY_PRIORITY)?;
            self.prefix(operator, operand, line)?
        } else {
            self.simple()?
        };
        while let Some((operator, left_priority, right_priority)) = Binary::of(&self.token) {
            if left_priority <= limit {
                break;
            }
            let line = self.token_line;
            self.advance()?;
            let operand = self.infix(operator, &mut left)?;
            let right = self.subexpression(right_priority)?;
            left = self.posfix(operator, left, operand, right, line)?;
        }
        self.leave_level();
        Ok(left)
    }

    fn prefix(&mut self, operator: &str, operand: Expression, line: u32) -> Lexed<Expression> {
        let mut operand = operand;
        if operator == "not" {
            self.negate_truth(&mut operand)?;
            return Ok(operand);
        }
        if let (Location::Int(value), "-", false) =
            (operand.location, operator, operand.has_jumps())
        {
            return Ok(Location::Int(value.wrapping_neg()).into());
        }
        let from = self.put_in_any_register(&mut operand)?;
        self.free(&operand);
        let at = if operator == "-" {
            self.emit(Op::Negate { to: 0, from })
        } else {
            self.emit(Op::Length { to: 0, from })
        };
        self.set_line(line);
        Ok(Location::Pending(at).into())
    }

    /// Prepares the left side of an operator, before the right one is read.
    fn infix(&mut self, operator: Binary, left: &mut Expression) -> Lexed<Operand> {
        match operator {
            Binary::And => self.go_if_true(left)?,
            Binary::Or => self.go_if_false(left)?,
            Binary::Concat => self.put_in_next_register(left)?,
            Binary::Arith(_) if matches!(left.location, Location::Int(_)) && !left.has_jumps() => {}
            Binary::Arith(_) | Binary::Compare { .. } => return self.settle_operand(left),
        }
        Ok(0)
    }

    fn posfix(
        &mut self,
        operator: Binary,
        left: Expression,
        left_operand: Operand,
        right: Expression,
        line: u32,
    ) -> Lexed<Expression> {
        let (mut left, mut right) = (left, right);
        match operator {
            Binary::And => {
                self.discharge(&mut right);
                right.when_false.extend(left.when_false);
                Ok(right)
            }
            Binary::Or => {
                self.discharge(&mut right);
                right.when_true.extend(left.when_true);
                Ok(right)
            }
            Binary::Concat => self.join(&left, right, line),
            Binary::Arith(operation) => {
                if let (Location::Int(first), Location::Int(second)) =
                    (left.location, right.location)
                    && !right.has_jumps()
                    && let Ok(value) = number::compute(operation, first, second)
                {
                    return Ok(Location::Int(value).into());
                }
                let right_operand = self.settle_operand(&mut right)?;
                let left_operand = match left.location {
                    Location::Int(_) => self.settle_operand(&mut left)?,
                    _ => left_operand,
                };
                self.free_values(&left, &right);
                let at = self.emit(Op::Arith {
                    operation,
                    to: 0,
                    left: left_operand,
                    right: right_operand,
                });
                self.set_line(line);
                Ok(Location::Pending(at).into())
            }
            Binary::Compare {
                comparison,
                expect,
                swap,
            } => {
                let right_operand = self.settle_operand(&mut right)?;
                self.free_values(&left, &right);
                let (first, second) = if swap {
                    (right_operand, left_operand)
                } else {
                    (left_operand, right_operand)
                };
                self.emit(Op::Compare {
                    comparison,
                    expect,
                    left: first,
                    right: second,
                });
                self.set_line(line);
                Ok(Location::Jump(self.jump()).into())
            }
        }
    }

    /// Frees the registers of two operands, the later one first.
    fn free_values(&mut self, left: &Expression, right: &Expression) {
        let operand = |expression: &Expression| match expression.location {
            Location::Register(register) => u16::from(register),
            _ => crate::code::CONSTANT,
        };
        self.free_operands(operand(left), operand(right));
    }

    fn join(&mut self, left: &Expression, right: Expression, line: u32) -> Lexed<Expression> {
        let mut right = right;
        let Location::Register(first_register) = left.location else {
            unreachable!("it was put into a register");
        };
        self.settle_value(&mut right)?;
        if let Location::Pending(at) = right.location
            && let Op::Concat { first, .. } = &mut self.state().code.code[at]
        {
            assert_eq!(*first, first_register + 1, "values to join are neighbours");
            *first = first_register;
            self.free(left);
            return Ok(Location::Pending(at).into());
        }
        self.put_in_next_register(&mut right)?;
        let Location::Register(last) = right.location else {
            unreachable!("it was put into a register");
        };
        self.free(&right);
        self.free(left);
        let at = self.emit(Op::Concat {
            to: 0,
            first: first_register,
            last,
        });
        self.set_line(line);
        Ok(Location::Pending(at).into())
    }

    fn simple(&mut self) -> Lexed<Expression> {
        let location = match &self.token {
            Token::Number(value) => Location::Int(*value),
            Token::String(text) => {
                let text = text.clone();
                Location::Constant(self.string_constant(&text))
            }
            Token::Keyword(Keyword::Nil) => Location::Nil,
            Token::Keyword(Keyword::True) => Location::Bool(true),
            Token::Keyword(Keyword::False) => Location::Bool(false),
            Token::Sign("...") => {
                if !self.state().code.is_vararg {
                    return Err(self.error_near("cannot use '...' outside a vararg function"));
                }
                Location::Varargs(self.emit(Op::Varargs { to: 0, count: 1 }))
            }
            Token::Sign("{") => return self.constructor(),
            Token::Keyword(Keyword::Function) => {
                self.advance()?;
                let line = self.last_line;
                return self.body(false, line);
            }
            _ => return self.suffixed(),
        };
        self.advance()?;
        Ok(location.into())
    }

    fn primary(&mut self) -> Lexed<Expression> {
        match &self.token {
            Token::Name(name) => {
                let name = name.clone();
                self.advance()?;
                self.variable(&name)
            }
            Token::Sign("(") => {
                let line = self.token_line;
                self.advance()?;
                let mut inner = self.expression()?;
                self.expect_match(&Token::Sign(")"), "(", line)?;
                self.discharge(&mut inner);
                Ok(inner)
            }
            _ => Err(self.error_near("unexpected symbol")),
        }
    }

    pub(super) fn suffixed(&mut self) -> Lexed<Expression> {
        let line = self.token_line;
        let mut object = self.primary()?;
        loop {
            match &self.token {
                Token::Sign(".") => {
                    self.advance()?;
                    object = self.field_of(object)?;
                }
                Token::Sign("[") => {
                    self.table_place(&mut object)?;
                    let key = self.bracketed()?;
                    object = self.indexed(&object, key)?;
                }
                Token::Sign(":") => {
                    self.advance()?;
                    let name = self.name()?;
                    self.method(&mut object, &name)?;
                    object = self.arguments(object, line)?;
                }
                Token::Sign("(" | "{") | Token::String(_) => {
                    self.put_in_next_register(&mut object)?;
                    object = self.arguments(object, line)?;
                }
                _ => return Ok(object),
            }
        }
    }

    /// Makes sure that a table can be indexed: it is an upvalue or in a register.
    fn table_place(&mut self, object: &mut Expression) -> Lexed<()> {
        if !matches!(object.location, Location::Upvalue(_)) || object.has_jumps() {
            self.put_in_any_register(object)?;
        }
        Ok(())
    }

    /// The field named by the next token.
    pub(super) fn field_of(&mut self, object: Expression) -> Lexed<Expression> {
        let mut object = object;
        self.table_place(&mut object)?;
        let name = self.name()?;
        let key = Location::Constant(self.string_constant(&name)).into();
        self.indexed(&object, key)
    }

    fn bracketed(&mut self) -> Lexed<Expression> {
        self.advance()?;
        let mut key = self.expression()?;
        self.settle_value(&mut key)?;
        self.expect_sign("]")?;
        Ok(key)
    }

    pub(super) fn indexed(&mut self, table: &Expression, key: Expression) -> Lexed<Expression> {
        let mut key = key;
        let key = self.settle_operand(&mut key)?;
        Ok(match table.location {
            Location::Upvalue(upvalue) => Location::UpvalueIndexed { upvalue, key },
            Location::Register(table) | Location::Local(table) => Location::Indexed { table, key },
            _ => unreachable!("tables are upvalues or in registers"),
        }
        .into())
    }

    fn method(&mut self, object: &mut Expression, name: &[u8]) -> Lexed<()> {
        let register = self.put_in_any_register(object)?;
        self.free(object);
        let to = Self::register(self.state().free);
        self.reserve(2)?;
        let mut key = Location::Constant(self.string_constant(name)).into();
        let key = self.settle_operand(&mut key)?;
        self.emit(Op::Method {
            to,
            object: register,
            key,
        });
        if key < crate::code::CONSTANT {
            self.state().free -= 1;
        }
        object.location = Location::Register(to);
        Ok(())
    }

    /// The arguments of a call, and the call; the function is in the last register but for `self`.
    fn arguments(&mut self, function: Expression, line: u32) -> Lexed<Expression> {
        let Location::Register(register) = function.location else {
            unreachable!("functions are called from registers");
        };
        let mut many = false;
        match &self.token {
            Token::Sign("(") => {
                let open = self.token_line;
                self.advance()?;
                if !self.is_sign(")") {
                    let (_, mut last) = self.expression_list()?;
                    many = last.has_many_values();
                    if many {
                        self.set_results(&last, -1)?;
                    } else {
                        self.put_in_next_register(&mut last)?;
                    }
                }
                self.expect_match(&Token::Sign(")"), "(", open)?;
            }
            Token::Sign("{") => {
                let mut table = self.constructor()?;
                self.put_in_next_register(&mut table)?;
            }
            Token::String(text) => {
                let text = text.clone();
                let mut argument = Location::Constant(self.string_constant(&text)).into();
                self.advance()?;
                self.put_in_next_register(&mut argument)?;
            }
            _ => return Err(self.error_near("function arguments expected")),
        }
        let count = self.state().free - usize::from(register) - 1;
        let at = self.emit(Op::Call {
            function: register,
            arguments: if many { -1 } else { small(count) },
            results: 1,
        });
        self.set_line(line);
        // The call takes the function and the arguments, and leaves one value unless told otherwise.
        self.state().free = usize::from(register) + 1;
        Ok(Location::Call(at).into())
    }

    /// Expressions; all but the last are in registers.
    pub(super) fn expression_list(&mut self) -> Lexed<(usize, Expression)> {
        let mut count = 1;
        let mut last = self.expression()?;
        while self.accept_sign(",")? {
            self.put_in_next_register(&mut last)?;
            last = self.expression()?;
            count += 1;
        }
        Ok((count, last))
    }

    fn constructor(&mut self) -> Lexed<Expression> {
        let line = self.token_line;
        let at = self.emit(Op::NewTable { to: 0 });
        let mut table: Expression = Location::Pending(at).into();
        self.put_in_next_register(&mut table)?;
        let Location::Register(register) = table.location else {
            unreachable!("it was put into a register");
        };
        let mut constructor = Constructor {
            table: register,
            element: None,
            pending: 0,
            stored: 0,
        };
        self.expect_sign("{")?;
        while !self.is_sign("}") {
            self.close_element(&mut constructor)?;
            let is_named =
                matches!(self.token, Token::Name(_)) && *self.look_ahead()? == Token::Sign("=");
            if is_named || self.is_sign("[") {
                self.keyed_element(register)?;
            } else {
                constructor.element = Some(self.expression()?);
                constructor.pending += 1;
            }
            if !self.accept_sign(",")? && !self.accept_sign(";")? {
                break;
            }
        }
        self.expect_match(&Token::Sign("}"), "{", line)?;
        self.last_element(constructor)?;
        Ok(table)
    }

    fn keyed_element(&mut self, table: u8) -> Lexed<()> {
        let free = self.state().free;
        let mut key = if self.is_sign("[") {
            self.bracketed()?
        } else {
            let name = self.name()?;
            Location::Constant(self.string_constant(&name)).into()
        };
        self.expect_sign("=")?;
        let key = self.settle_operand(&mut key)?;
        let mut value = self.expression()?;
        let value = self.settle_operand(&mut value)?;
        self.emit(Op::Set { table, key, value });
        self.state().free = free;
        Ok(())
    }

    /// Puts the element before the next one into its register, and stores a batch that is full.
    fn close_element(&mut self, constructor: &mut Constructor) -> Lexed<()> {
        let Some(mut element) = constructor.element.take() else {
            return Ok(());
        };
        self.put_in_next_register(&mut element)?;
        if constructor.pending == LIST_BATCH {
            self.store_list(constructor, false);
        }
        Ok(())
    }

    fn last_element(&mut self, constructor: Constructor) -> Lexed<()> {
        let mut constructor = constructor;
        if constructor.pending == 0 {
            return Ok(());
        }
        match constructor.element.take() {
            Some(element) if element.has_many_values() => {
                self.set_results(&element, -1)?;
                self.store_list(&mut constructor, true);
            }
            element => {
                if let Some(mut element) = element {
                    self.put_in_next_register(&mut element)?;
                }
                self.store_list(&mut constructor, false);
            }
        }
        Ok(())
    }

    fn store_list(&mut self, constructor: &mut Constructor, many: bool) {
        self.emit(Op::SetList {
            table: constructor.table,
            count: if many { -1 } else { small(constructor.pending) },
            first: u32::try_from(constructor.stored + 1).expect("programs are short"),
        });
        constructor.stored += constructor.pending;
        constructor.pending = 0;
        self.state().free = usize::from(constructor.table) + 1;
    }
}
