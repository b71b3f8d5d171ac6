package apiserver

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// frame is an open object or array of a body.
type frame struct {
	object  bool
	key     string // last key that was read
	wantKey bool   // the next string is a key
}

// maxDepth limits the nesting, with a margin over the bodies of this API.
const maxDepth = 32

// lastField returns the path of the last field before the syntax error in data, as in "addressing.ipv4".
func lastField(data []byte) string {
	dec := json.NewDecoder(bytes.NewReader(data))
	var open []frame
	for len(open) <= maxDepth {
		token, err := dec.Token()
		if err != nil {
			break
		}
		open = next(open, token)
	}
	var path []string
	for _, f := range open {
		if f.key != "" {
			path = append(path, f.key)
		}
	}
	return strings.Join(path, ".")
}

// next applies a token to the stack of open frames.
func next(open []frame, token json.Token) []frame {
	inner := len(open) - 1
	switch t := token.(type) {
	case json.Delim:
		if t == '{' || t == '[' {
			return append(open, frame{object: t == '{', wantKey: t == '{'})
		}
		open = open[:inner]
		inner--
	case string:
		if inner >= 0 && open[inner].wantKey {
			open[inner].key, open[inner].wantKey = t, false
			return open
		}
	}
	if inner >= 0 { // a value is complete
		open[inner].wantKey = open[inner].object
	}
	return open
}

// clip quotes text of a client and limits its length, so that messages contain no terminal escapes and stay short.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return strconv.QuoteToASCII(s)
	}
	return strconv.QuoteToASCII(s[:most]) + "..."
}
