package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// read reads all values of a text with a Reader, into the types of encoding/json.
func read(r *Reader) (out any) {
	r.space()
	switch c := r.next(); {
	case c == '{':
		object := map[string]any{}
		r.Object(func(name []byte) { object[string(name)] = read(r) })
		return object
	case c == '[':
		array := []any{}
		r.Array(func() { array = append(array, read(r)) })
		return array
	case c == '"':
		return string(r.Text())
	case c == '-' || isDigit(c):
		return json.Number(fmt.Sprint(r.Int()))
	case c == 't':
		r.Skip()
		return true
	case c == 'f':
		r.Skip()
		return false
	}
	r.Skip()
	return nil
}

func decode(data []byte) (out any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err = d.Decode(&out)
	return out, err
}

// FuzzReader compares a Reader with encoding/json: read values are the same, and skipped values are valid JSON.
func FuzzReader(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		skipper := NewReader(data)
		if skipper.Skip(); skipper.Done() != json.Valid(data) && !deep(data) {
			t.Fatalf("%q: skipped %v, valid %v", data, skipper.Done(), json.Valid(data))
		}
		r := NewReader(data)
		got := read(r)
		if !r.Done() {
			return
		}
		want, err := decode(data)
		if err != nil {
			t.Fatalf("%q: read, and encoding/json says %v", data, err)
		}
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w && !strings.Contains(w, "-0") {
			t.Fatalf("%q: %s, want %s", data, g, w)
		}
	})
}

// deep reports whether the values of a text may nest too deep for a Reader.
func deep(data []byte) bool {
	return bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > maxDepth
}

var texts = []string{`{}`, `[]`, ` {"a" : [1, -2, 30, {"b":"c"}], "d": true, "e": null,"f":false}`, `"x"`, `{"a":1.5e+3,"b":0,"c":-0.1E2}`,
	`{"a":"\n\u00e9\\\"\/"}`, `{"\u0061":1}`, `[1,]`, `{"a":1,}`, `{"a" 1}`, `[01]`, `[1.]`, `[-]`, `[1e]`, `tru`, `nul`, `[1 2]`, `{"a":"` + "\x01" + `"}`,
	`{"a":"\u00g0"}`, "\"\\u\x10000\"", `"\x"`, `"a`, ``, ` `, `{} {}`, `{"a":"` + "\xff" + `"}`, `{"a":{"a":1},"a":2}`, `[9223372036854775807,9223372036854775808]`,
	strings.Repeat("[", 200) + strings.Repeat("]", 200)}

func TestReader_ReadsPlainJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{`{"a":[1,{"b":"c"}],"d":true}`: true, `{"a":"\n"}`: false, `{"\u0061":1}`: false, `[1.5]`: false, `[1,]`: false,
		`{"a":1} x`: false, `[9223372036854775808]`: false, `{"a":"` + "\xff" + `"}`: false} {
		r := NewReader([]byte(text))
		if read(r); r.Done() != want {
			t.Errorf("%s: done is %v, want %v", text, r.Done(), want)
		}
		skipper := NewReader([]byte(text))
		if skipper.Skip(); skipper.Done() != json.Valid([]byte(text)) {
			t.Errorf("%s: skipped is %v", text, skipper.Done())
		}
	}
}

// TestReader_Unquote compares Unquote with encoding/json.
func TestReader_Unquote(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{`""`: true, ` "a b" `: true, `"\"\\\/\b\f\n\r\t"`: true, `"\u00e9\u003c"`: true, `"é\n"`: true, `"\uD83D\uDE00"`: true,
		`"\ud83d"`: true, `"\ud83d\u0061"`: true, `"\u0000"`: true, `"\u12"`: false, `"\x"`: false, `"a`: false, `"a\"`: false, `a`: false, `5`: false, `null`: false, ``: false,
		"\"\xff\"": false, "\"\\n\xff\"": false, "\"\n\"": false} {
		r := NewReader([]byte(text))
		got := r.Unquote()
		if r.Done() != want {
			t.Errorf("%q: done is %v, want %v", text, r.Done(), want)
			continue
		}
		var plain string
		if err := json.Unmarshal([]byte(text), &plain); want && (err != nil || got != plain) {
			t.Errorf("%q: %q, want %q, %v", text, got, plain, err)
		}
	}
}

func TestReader_Failed_ReadsNothing(t *testing.T) {
	t.Parallel()
	r := NewReader([]byte(`{"a":1,"b":2}`))
	members := 0
	r.Object(func([]byte) { members++; r.Skip(); r.Fail() })
	if r.Done() || members != 1 {
		t.Errorf("%d members, done is %v", members, r.Done())
	}
}

// frames returns the objects of a stream and the error that ends it.
func frames(in io.Reader) (out []string, err error) {
	f := NewFrames(in)
	for {
		frame, err := f.Next()
		if err != nil {
			return out, err
		}
		out = append(out, string(frame))
	}
}

func TestFrames_IndependentOfReadSizes(t *testing.T) {
	t.Parallel()
	objects := []string{`{}`, `{"a":"}{\"]\\"}`, `{"a":[{},{"b":[]}]}`, `{"long":"` + strings.Repeat("x", 3*firstSize) + `"}`, `{"b":1}`}
	for end, want := range map[string]error{"": io.EOF, " \n": io.EOF, "{": io.ErrUnexpectedEOF, "1": errNoObject} {
		for _, separator := range []string{"", "\n", " \r\n\t"} {
			text := strings.Join(objects, separator) + end
			for name, in := range map[string]io.Reader{"whole": strings.NewReader(text), "single bytes": iotest.OneByteReader(strings.NewReader(text)),
				"halves": iotest.HalfReader(strings.NewReader(text)), "with the error": iotest.DataErrReader(strings.NewReader(text))} {
				got, err := frames(in)
				if !errors.Is(err, want) || strings.Join(got, "") != strings.Join(objects, "") || len(got) != len(objects) {
					t.Errorf("%s, separator %q, end %q: %d objects, %v", name, separator, end, len(got), err)
				}
			}
		}
	}
}

// endless never ends a string.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	if !e.begun {
		copy(p, `{"`)
		e.begun = true
	}
	return len(p), nil
}

func TestFrames_ObjectWithoutEnd(t *testing.T) {
	t.Parallel()
	if _, err := NewFrames(&endless{}).Next(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
}

// FuzzFrames compares Frames with a decoder of encoding/json, for streams of objects.
func FuzzFrames(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text + text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want []string
		for d := json.NewDecoder(bytes.NewReader(data)); ; {
			var raw json.RawMessage
			if d.Decode(&raw) != nil || raw[0] != '{' {
				break
			}
			want = append(want, string(raw))
		}
		got, _ := frames(iotest.HalfReader(bytes.NewReader(data)))
		if len(got) < len(want) || strings.Join(got[:len(want)], "\n") != strings.Join(want, "\n") {
			t.Fatalf("%q: %q, want %q first", data, got, want)
		}
	})
}
