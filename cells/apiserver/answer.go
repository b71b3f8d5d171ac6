package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/api/v1/server"
)

// answer writes a value as JSON with a final newline. A nil value means an empty body.
func answer(w http.ResponseWriter, code int, value any) {
	if value == nil {
		w.WriteHeader(code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The only error is that of the connection, and then there is nobody to tell.
	_ = json.NewEncoder(w).Encode(value)
}

// fail answers as handlers do: the error is a bare JSON string.
func fail(w http.ResponseWriter, code int, err error) { answer(w, code, err.Error()) }

// reject answers as the router does, before a handler sees the request.
func reject(w http.ResponseWriter, code int, message string) {
	answer(w, code, models.RouterError{Code: code, Message: message})
}

// badParameter answers for the generated code, which reads parameters of path, query and header.
func badParameter(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusBadRequest
	var required *server.RequiredParamError
	if errors.As(err, &required) {
		code = http.StatusUnprocessableEntity
	}
	reject(w, code, err.Error())
}
