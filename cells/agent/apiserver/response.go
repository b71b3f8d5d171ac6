package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/api/v1/server"
)

// respond writes a value as JSON with a final newline. A nil value means an empty body.
func respond(w http.ResponseWriter, code int, value any) {
	if value == nil {
		w.WriteHeader(code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The only possible error is a failed connection, which has no reader for an error.
	_ = json.NewEncoder(w).Encode(value)
}

// fail replies like Cilium's handlers: the error is a bare JSON string.
func fail(w http.ResponseWriter, code int, err error) { respond(w, code, err.Error()) }

// reject replies like Cilium's router, before a handler receives the request.
func reject(w http.ResponseWriter, code int, message string) {
	respond(w, code, models.RouterError{Code: code, Message: message})
}

// badParameter replies to requests whose path, query or header parameters the generated code cannot read.
func badParameter(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusBadRequest
	var required *server.RequiredParamError
	if errors.As(err, &required) {
		code = http.StatusUnprocessableEntity
	}
	reject(w, code, err.Error())
}
