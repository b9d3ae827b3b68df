package policies
const testSuffix = "_test.rego"
