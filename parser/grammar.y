// The grammar of Quern (Lemon, LALR(1), no conflicts). Actions call the builders of build.c and do nothing else.
//
// Notes on the form:
// - lists are left-recursive, so that a long list needs no stack; their items wait on the parser's stack of items;
// - what a brace means is settled by the lexer: LC begins a block (or a pattern), LREC a record, LEMPTY stands before
//   `}`. Empty braces are a block where a body is expected and a record elsewhere; that is the one choice made by
//   precedence of rules (a lambda's body may be either);
// - a lambda's body and what `..` spreads reach as far right as they can: the precedence LAMBDA, below all operators;
// - the stack is fixed. 8 entries a level of nesting are more than any construct needs, so it overflows only for trees
//   that would be too high as well.

%name grammar
%token_prefix T_
%token_type {token}
%default_type {ast_node *}
%extra_context {parser *p}
%start_symbol program
%stack_size 8200

%include {
#undef NDEBUG
#define NDEBUG 1 // no trace output and no asserts in the automaton
#include "parser/state.h"
#define YYNOERRORRECOVERY 1
#define AT(from, to) span_join(token_span(p, from), token_span(p, to))
#define KIDS(...) ((ast_node *[]){__VA_ARGS__})
#define ONE(item, start) build_item(p, (sequence){0, start}, item, start)
}

%syntax_error { p->failed = true; } // the driver asks grammar_accepts first
%stack_overflow { parser_fail(p, E_nesting, p->last_token.start, p->last_token.end, "nested more than 1,000 deep"); }

%nonassoc LAMBDA.
%left OR.
%left AND.
%right NOT.
%nonassoc EQ NE LT LE GT GE.
%left BOR.
%left BAND.
%nonassoc DOTDOT.
%left PLUS MINUS.
%left STAR SLASH DSLASH PERCENT AT.
%right NEG TILDE.
%right POW.

%type stmts {sequence}

program ::= stmts(S). {
  span all = {p->source, 0, (uint32_t)p->text->len};
  p->module->root = build_node(p, AST_block, all, all, NULL, S.n);
}

// ---- statements ----

stmts(S) ::= . { S = (sequence){0, 0}; }
stmts(S) ::= stmt(A). { S = ONE(A, A->at.start); }
stmts(S) ::= stmts(L) sep. { S = L; }
stmts(S) ::= stmts(L) sep stmt(A). { S = build_item(p, L, A, A->at.start); }
sep ::= NL.
sep ::= SEMI.

stmt(A) ::= expr(E). { A = E; }
stmt(A) ::= LET(W) pattern(P) ASSIGN expr(E). {
  A = build_node(p, AST_let, span_join(token_span(p, W), E->at), token_span(p, W), KIDS(P, E), 0);
}
stmt(A) ::= expr(L) ASSIGN(O) expr(E). { A = build_assign(p, L, O, E); }
stmt(A) ::= expr(L) OPASSIGN(O) expr(E). { A = build_assign(p, L, O, E); }
stmt(A) ::= LC(B) targets(S) comma_opt RC(C) ASSIGN(O) expr(E). {
  A = build_assign(p, build_node(p, AST_pat_record, AT(B, C), AT(B, C), NULL, S.n), O, E);
}
stmt(A) ::= FN(W) NAME(N) LP params(S) RP result(R) block(B). { A = build_fn(p, W, &N, S.n, R, B, 0); }
stmt(A) ::= FN(W) NAME(N) LP params(S) RP result(R) ASSIGN expr(E). {
  A = build_fn(p, W, &N, S.n, R, build_body(p, E), AST_SHORT);
}
stmt(A) ::= FOR(W) pattern(P) IN expr(E) block(B). {
  A = build_node(p, AST_for, span_join(token_span(p, W), B->at), token_span(p, W), KIDS(P, E, B), 0);
}
stmt(A) ::= WHILE(W) expr(E) block(B). {
  A = build_node(p, AST_while, span_join(token_span(p, W), B->at), token_span(p, W), KIDS(E, B), 0);
}
stmt(A) ::= BREAK(W). { A = build_leaf(p, AST_break, W); }
stmt(A) ::= CONTINUE(W). { A = build_leaf(p, AST_continue, W); }
stmt(A) ::= RETURN(W). { A = build_node(p, AST_return, token_span(p, W), token_span(p, W), KIDS(NULL), 0); }
stmt(A) ::= RETURN(W) expr(E). {
  A = build_node(p, AST_return, span_join(token_span(p, W), E->at), token_span(p, W), KIDS(E), 0);
}
stmt(A) ::= IMPORT(W) NAME(N). { A = build_import(p, W, N, false, N); }
stmt(A) ::= IMPORT(W) NAME(N) AS NAME(M). { A = build_import(p, W, N, false, M); }
stmt(A) ::= IMPORT(W) STRING(N) AS NAME(M). { A = build_import(p, W, N, true, M); }

// A body. `braces` are those that hold statements; a record as a body is a block of that one expression.
block(A) ::= braces(B). { A = B; }
block(A) ::= LREC(B) fields(S) comma_opt nl_opt RC(C). {
  A = build_body(p, build_node(p, AST_record, AT(B, C), AT(B, C), NULL, S.n));
}
braces(A) ::= LC(B) stmts(S) RC(C). { A = build_node(p, AST_block, AT(B, C), AT(B, C), NULL, S.n); }
braces(A) ::= LEMPTY(B) RC(C). [POW] { A = build_node(p, AST_block, AT(B, C), AT(B, C), NULL, 0); }

comma_opt ::= .
comma_opt ::= COMMA.
nl_opt ::= .
nl_opt ::= NL.

// ---- patterns ----

%type patterns {sequence}
%type pattern_fields {sequence}
%type targets {sequence}

pattern(A) ::= NAME(N). { A = build_leaf(p, AST_name, N); }
pattern(A) ::= LP(B) patterns(S) RP(C). {
  A = build_node(p, AST_pat_list, AT(B, C), AT(B, C), NULL, S.n);
}
pattern(A) ::= LP(B) patterns(S) pattern(I) RP(C). {
  sequence all = build_item(p, S, I, I->at.start);
  A = build_node(p, AST_pat_list, AT(B, C), AT(B, C), NULL, all.n);
}
pattern(A) ::= LC|LREC(B) pattern_fields(S) comma_opt nl_opt RC(C). {
  A = build_node(p, AST_pat_record, AT(B, C), AT(B, C), NULL, S.n);
}
patterns(S) ::= pattern(A) COMMA. { S = ONE(A, A->at.start); }
patterns(S) ::= patterns(L) pattern(A) COMMA. { S = build_item(p, L, A, A->at.start); }
pattern_fields(S) ::= pattern_field(A). { S = ONE(A, A->at.start); }
pattern_fields(S) ::= pattern_fields(L) COMMA pattern_field(A). { S = build_item(p, L, A, A->at.start); }
pattern_field(A) ::= NAME(N). { A = build_pattern_field(p, N, NULL); }
pattern_field(A) ::= NAME(N) COLON pattern(P). { A = build_pattern_field(p, N, P); }

// {a, b: x[0]} = r: the fields of a record assigned to lvalues
targets(S) ::= target(A). { S = ONE(A, A->at.start); }
targets(S) ::= targets(L) COMMA target(A). { S = build_item(p, L, A, A->at.start); }
target(A) ::= NAME(N). { A = build_pattern_field(p, N, NULL); }
target(A) ::= NAME(N) COLON expr(E). { A = build_pattern_field(p, N, E); }

// ---- operators ----

expr(A) ::= expr(L) OR(O) expr(R). { A = build_infix(p, AST_or, L, O, R); }
expr(A) ::= expr(L) AND(O) expr(R). { A = build_infix(p, AST_and, L, O, R); }
expr(A) ::= NOT(O) expr(E). {
  A = build_node(p, AST_not, span_join(token_span(p, O), E->at), token_span(p, O), KIDS(E), 0);
}
expr(A) ::= expr(L) EQ|NE|LT|LE|GT|GE(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= expr(L) BOR(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= expr(L) BAND(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= expr(L) DOTDOT(O) expr(R). { A = build_infix(p, AST_range, L, O, R); }
expr(A) ::= expr(L) PLUS|MINUS(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= expr(L) STAR|SLASH|DSLASH|PERCENT|AT(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= MINUS(O) expr(E). [NEG] { A = build_unary(p, O, E); }
expr(A) ::= TILDE(O) expr(E). { A = build_unary(p, O, E); }
expr(A) ::= expr(L) POW(O) expr(R). { A = build_infix(p, AST_binary, L, O, R); }
expr(A) ::= FN(W) LP params(S) RP expr(E). [LAMBDA] {
  A = build_fn(p, W, NULL, S.n, NULL, build_body(p, E), AST_SHORT);
}
expr(A) ::= FN(W) LP params(S) RP braces(B). [LAMBDA] { A = build_fn(p, W, NULL, S.n, NULL, B, 0); }
expr(A) ::= FN(W) LP params(S) RP ARROW type(R) block(B). [LAMBDA] { A = build_fn(p, W, NULL, S.n, R, B, 0); }
expr(A) ::= postfix(E). { A = E; }

// ---- calls, indices, fields ----

%type args {sequence}
%type arguments {sequence}
%type index {sequence}
%type indices {sequence}

postfix(A) ::= primary(E). { A = E; }
postfix(A) ::= postfix(E) LP(B) args(S) RP(C). { A = build_call(p, E, B, S.n, C); }
postfix(A) ::= postfix(E) LB(B) index(S) RB(C). { A = build_index(p, E, B, S.n, C); }
postfix(A) ::= postfix(E) DOT NAME(N). {
  A = build_named(p, AST_field, span_join(E->at, token_span(p, N)), N, KIDS(E), 0);
}

args(S) ::= . { S = (sequence){0, 0}; }
args(S) ::= arguments(L) comma_opt. { S = L; }
arguments(S) ::= argument(A). { S = ONE(A, A->at.start); }
arguments(S) ::= arguments(L) COMMA argument(A). { S = build_item(p, L, A, A->at.start); }
argument(A) ::= item(I). { A = I; }
argument(A) ::= NAME(N) COLON expr(E). {
  A = build_named(p, AST_keyword, span_join(token_span(p, N), E->at), N, KIDS(E), 0);
}

index(S) ::= indices(L) comma_opt. { S = L; }
indices(S) ::= at(A). { S = ONE(A, A->at.start); }
indices(S) ::= indices(L) COMMA at(A). { S = build_item(p, L, A, A->at.start); }
at(A) ::= expr(E). { A = build_index_item(p, E); }
at(A) ::= ELLIPSIS(T). { A = build_leaf(p, AST_ellipsis, T); }
at(A) ::= expr_opt(B) COLON(T) expr_opt(C). { A = build_slice(p, T, B, C, NULL); }
at(A) ::= expr_opt(B) COLON(T) expr_opt(C) COLON expr_opt(D). { A = build_slice(p, T, B, C, D); }
expr_opt(A) ::= . { A = NULL; }
expr_opt(A) ::= expr(E). { A = E; }

// ---- literals ----

%type template {sequence}
%type items {sequence}
%type item_commas {sequence}
%type fields {sequence}

primary(A) ::= INT(T). { A = build_leaf(p, AST_int, T); }
primary(A) ::= FLOAT(T). { A = build_leaf(p, AST_float, T); }
primary(A) ::= TRUE(T). { T.u.i = 1; A = build_leaf(p, AST_bool, T); }
primary(A) ::= FALSE(T). { A = build_leaf(p, AST_bool, T); }
primary(A) ::= NIL(T). { A = build_leaf(p, AST_nil, T); }
primary(A) ::= STRING(T). { A = build_leaf(p, AST_str, T); }
primary(A) ::= NAME(T). { A = build_leaf(p, AST_name, T); }

primary(A) ::= template(S) SEND(T). {
  sequence all = build_text(p, S, T, S.start);
  span at = {p->source, all.start, T.end};
  A = build_node(p, AST_template, at, at, NULL, all.n);
}
template(S) ::= SBEG(T) part(A). { S = build_item(p, build_text(p, (sequence){0, T.start}, T, T.start), A, T.start); }
template(S) ::= template(L) SMID(T) part(A). { S = build_item(p, build_text(p, L, T, L.start), A, L.start); }
part(A) ::= expr(E). { A = build_part(p, E, NULL); }
part(A) ::= expr(E) FMT(T). { A = build_part(p, E, &T); }

primary(A) ::= LP(B) expr(E) RP(C). { A = build_paren(p, B, E, C); }
primary(A) ::= LP(B) RP(C). { A = build_node(p, AST_list, AT(B, C), AT(B, C), NULL, 0); }
primary(A) ::= LP(B) item_commas(S) RP(C). { A = build_node(p, AST_list, AT(B, C), AT(B, C), NULL, S.n); }
primary(A) ::= LP(B) item_commas(S) item(I) RP(C). {
  sequence all = build_item(p, S, I, I->at.start);
  A = build_node(p, AST_list, AT(B, C), AT(B, C), NULL, all.n);
}
item_commas(S) ::= item(A) COMMA. { S = ONE(A, A->at.start); }
item_commas(S) ::= item_commas(L) item(A) COMMA. { S = build_item(p, L, A, A->at.start); }
item(A) ::= expr(E). { A = E; }
item(A) ::= spread(E). { A = E; }
spread(A) ::= DOTDOT(T) expr(E). [LAMBDA] {
  A = build_node(p, AST_spread, span_join(token_span(p, T), E->at), token_span(p, T), KIDS(E), 0);
}

primary(A) ::= LB(B) RB(C). { A = build_node(p, AST_array, AT(B, C), AT(B, C), NULL, 0); }
primary(A) ::= LB(B) items(S) comma_opt RB(C). { A = build_node(p, AST_array, AT(B, C), AT(B, C), NULL, S.n); }
items(S) ::= item(A). { S = ONE(A, A->at.start); }
items(S) ::= items(L) COMMA item(A). { S = build_item(p, L, A, A->at.start); }

primary(A) ::= LEMPTY(B) RC(C). [LAMBDA] { A = build_node(p, AST_record, AT(B, C), AT(B, C), NULL, 0); }
primary(A) ::= LREC(B) fields(S) comma_opt nl_opt RC(C). {
  A = build_node(p, AST_record, AT(B, C), AT(B, C), NULL, S.n);
}
fields(S) ::= field(A). { S = ONE(A, A->at.start); }
fields(S) ::= fields(L) COMMA field(A). { S = build_item(p, L, A, A->at.start); }
field(A) ::= NAME|STRING(N) COLON expr(E). {
  A = build_named(p, AST_field_value, span_join(token_span(p, N), E->at), N, KIDS(E), 0);
}
field(A) ::= spread(E). { A = E; }

// ---- if and try ----

%type arms {sequence}

primary(A) ::= arms(S). { A = build_if(p, S.n, NULL); }
primary(A) ::= arms(S) ELSE block(B). { A = build_if(p, S.n, B); }
arms(S) ::= IF(W) expr(E) block(B). { S = ONE(build_arm(p, W, E, B), W.start); }
arms(S) ::= arms(L) ELSE IF(W) expr(E) block(B). { S = build_item(p, L, build_arm(p, W, E, B), W.start); }
primary(A) ::= TRY(W) block(B) CATCH NAME(N) block(H). {
  A = build_node(p, AST_try, span_join(token_span(p, W), H->at), token_span(p, W),
                 KIDS(B, build_leaf(p, AST_name, N), H), 0);
}

// ---- parameters and types ----

%type params {sequence}
%type parameters {sequence}
%type type_commas {sequence}
%type type_fields {sequence}
%type dims {sequence}
%type dimensions {sequence}

params(S) ::= . { S = (sequence){0, 0}; }
params(S) ::= parameters(L) comma_opt. { S = L; }
parameters(S) ::= param(A). { S = ONE(A, A->at.start); }
parameters(S) ::= parameters(L) COMMA param(A). { S = build_item(p, L, A, A->at.start); }
param(A) ::= NAME(N). { A = build_param(p, N, NULL, NULL); }
param(A) ::= NAME(N) COLON type(T). { A = build_param(p, N, T, NULL); }
param(A) ::= NAME(N) ASSIGN expr(E). { A = build_param(p, N, NULL, E); }
param(A) ::= NAME(N) COLON type(T) ASSIGN expr(E). { A = build_param(p, N, T, E); }
param(A) ::= DOTDOT(D) NAME(N). {
  A = build_param(p, N, NULL, NULL);
  A->flags |= AST_REST;
  A->at.start = D.start;
}

result(A) ::= . { A = NULL; }
result(A) ::= ARROW type(T). { A = T; }

type(A) ::= NAME(N). { A = build_leaf(p, AST_type_name, N); }
type(A) ::= FN(W). {
  W.u.s = str_intern(p->vm, "fn", 2);
  if (!W.u.s || !parser_keep(p, W.u.s)) p->failed = true;
  A = build_leaf(p, AST_type_name, W);
}
type(A) ::= NAME(N) LB dims(S) RB(C). { A = build_named(p, AST_type_array, AT(N, C), N, NULL, S.n); }
type(A) ::= LB(B) dims(S) RB(C). { A = build_node(p, AST_type_array, AT(B, C), AT(B, C), NULL, S.n); }
type(A) ::= LP(B) RP(C). { A = build_node(p, AST_type_list, AT(B, C), AT(B, C), NULL, 0); }
type(A) ::= LP type(T) RP. { A = T; }
type(A) ::= LP(B) type_commas(S) RP(C). { A = build_node(p, AST_type_list, AT(B, C), AT(B, C), NULL, S.n); }
type(A) ::= LP(B) type_commas(S) type(T) RP(C). {
  sequence all = build_item(p, S, T, T->at.start);
  A = build_node(p, AST_type_list, AT(B, C), AT(B, C), NULL, all.n);
}
type(A) ::= LEMPTY(B) RC(C). { A = build_node(p, AST_type_record, AT(B, C), AT(B, C), NULL, 0); }
type(A) ::= LREC(B) type_fields(S) comma_opt nl_opt RC(C). {
  A = build_node(p, AST_type_record, AT(B, C), AT(B, C), NULL, S.n);
}
type_commas(S) ::= type(A) COMMA. { S = ONE(A, A->at.start); }
type_commas(S) ::= type_commas(L) type(A) COMMA. { S = build_item(p, L, A, A->at.start); }
type_fields(S) ::= type_field(A). { S = ONE(A, A->at.start); }
type_fields(S) ::= type_fields(L) COMMA type_field(A). { S = build_item(p, L, A, A->at.start); }
type_field(A) ::= NAME|STRING(N) COLON type(T). {
  A = build_named(p, AST_type_field, span_join(token_span(p, N), T->at), N, KIDS(T), 0);
}
dims(S) ::= . { S = (sequence){0, 0}; }
dims(S) ::= dimensions(L) comma_opt. { S = L; }
dimensions(S) ::= dim(A). { S = ONE(A, A->at.start); }
dimensions(S) ::= dimensions(L) COMMA dim(A). { S = build_item(p, L, A, A->at.start); }
dim(A) ::= ELLIPSIS(T). { A = build_leaf(p, AST_ellipsis, T); }
dim(A) ::= expr(E). { A = build_dim(p, E); }

%code {
size_t grammar_size(void) { return sizeof(yyParser); }

void grammar_start(void *engine, parser *p) { grammarInit(engine, p); }

void grammar_push(void *engine, int terminal, token t) { grammar(engine, terminal, t); }

// Runs the automaton's reductions for this token on paper: `below` is what remains of the real stack, `over` holds
// the states pushed since. (Inside %syntax_error it would be too late: the default reductions have happened by then.)
bool grammar_accepts(const void *engine, int terminal) {
  const yyStackEntry *below = ((const yyParser *)engine)->yytos;
  YYACTIONTYPE over[64], state = below->stateno;
  int n = 0;
  for (;;) {
    YYACTIONTYPE action = yy_find_shift_action((YYCODETYPE)terminal, state);
    if (action <= YY_MAX_SHIFTREDUCE || action == YY_ACCEPT_ACTION) return true;
    if (action < YY_MIN_REDUCE) return false;
    int pop = -yyRuleInfoNRhs[action - YY_MIN_REDUCE];
    if (pop > n) below -= pop - n;
    n = pop > n ? 0 : n - pop;
    state = yy_find_reduce_action(n ? over[n - 1] : below->stateno, yyRuleInfoLhs[action - YY_MIN_REDUCE]);
    if (n == 64) return true; // no rule sequence pushes that many: only empty rules push without popping
    over[n++] = state;
  }
}
}
