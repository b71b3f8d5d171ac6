package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// failure is the error of one server.
type failure struct {
	server string
	err    error
}

// unreachable is the error when no server answers; it has one entry for each tried server.
type unreachable []failure

func (u unreachable) Error() string {
	texts := make([]string, 0, len(u))
	for _, f := range u {
		texts = append(texts, f.server+": "+explain(f.err))
	}
	return "the API server does not answer: " + strings.Join(texts, "; ")
}

func (u unreachable) Unwrap() []error {
	causes := make([]error, 0, len(u))
	for _, f := range u {
		causes = append(causes, f.err)
	}
	return causes
}

const credentialsRemedy = "the API server rejects the agent's credentials: the token has expired or belongs to another cluster; " +
	"check the ServiceAccount or the kubeconfig"

// explain returns the text of a connection error, with the remedy if one is known.
func explain(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	remedy := ""
	switch {
	case errors.As(err, &unknown):
		remedy = "check the CA in the kubeconfig or in the ServiceAccount's ca.crt"
	case errors.As(err, &name):
		remedy = "use an address that the certificate names, or add this one to it"
	case errors.As(err, &invalid):
		remedy = "check the clock of this node and the age of the certificate"
	case errors.As(err, &plain):
		remedy = "write http:// if this server does not speak TLS"
	}
	if remedy != "" {
		return err.Error() + ": " + remedy
	}
	return err.Error()
}

// describe adds the operation, the object and the remedy to an error. apimachinery's errors.Is functions still see the cause.
func (c *Client) describe(verb string, r Resource, namespace, name string, err error) error {
	if err == nil {
		return nil
	}
	what := r.String()
	switch {
	case namespace != "" && name != "":
		what += " " + namespace + "/" + name
	case name != "":
		what += " " + name
	}
	var request *url.Error // its text would repeat the operation
	if errors.As(err, &request) {
		err = request.Err
	}
	var down unreachable
	if errors.As(err, &down) {
		return fmt.Errorf("%s %s: %w", verb, what, err)
	}
	i, _ := c.servers.current()
	return fmt.Errorf("%s %s at %s: %w%s", verb, what, c.servers.urls[i], err, remedy(verb, r, name, err))
}

func remedy(verb string, r Resource, name string, err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return ": " + credentialsRemedy
	case apierrors.IsForbidden(err):
		return fmt.Sprintf(": the account lacks the verb %s on %s: apply the roles that \"waggle install\" prints", verb, r)
	case apierrors.IsNotFound(err) && name == "" && r.GroupVersion.Group == "cilium.io":
		return ": the CustomResourceDefinition is missing: apply what \"waggle install\" prints"
	}
	return ""
}
